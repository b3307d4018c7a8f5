"""Which entries of a replayed message rounding decides: nobody can say what these should have been.

A bias before batch normalisation has the gradient zero, of which arithmetic leaves rounding. Plain SGD makes next to
nothing of it. Adam's steps do not depend on a gradient's size [Kingma and Ba, 2015, Section 2.1]: it walks at random
there, and a replay of the very same training ends elsewhere. Plays that start from weights a few roundings apart tell
these entries from all others, on which they agree.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fedglass.core.params import Params
from fedglass.core.rng import stream

GRAIN = 1e-6
"""The share by which weights are moved: a few roundings in single precision, as another order of sums makes."""
PLAYS = 6
"""A step that goes up or down by chance goes the same way in all of them once in 2^6 times."""
TENSOR = 0.5
"""The share of a tensor from which on all of it is left to rounding: the rest agrees by chance."""
LOUDER = 3.0
"""How many times longer than in any play entries may be that are left to rounding: it does not make more of them."""


def nudged(weights: Params, seed: int) -> dict[str, Tensor]:
    """Weights a few roundings away; what is zero stays so, since a gradient that is exactly zero is no rounding."""
    generator = stream(seed, "rounding")
    return {name: w * (1 + GRAIN * torch.randn(w.shape, generator=generator).to(w)) for name, w in weights.items()}


def undecided(message: Tensor, plays: Sequence[Tensor], tolerance: float) -> Tensor:
    """The entries of one tensor on which plays that differ by rounding do not agree; none that they can not explain.

    >>> plays = [torch.tensor([1.0, 1.0, 0.3]), torch.tensor([1.0, 1.0, -0.2])]
    >>> undecided(torch.tensor([1.0, 1.0, 0.1]), plays, 0.02)
    tensor([False, False,  True])
    >>> undecided(torch.tensor([1.0, 1.0, 5.0]), plays, 0.02)
    tensor([False, False, False])
    """
    stacked = torch.stack(list(plays))
    spread = stacked.amax(dim=0) - stacked.amin(dim=0)
    found = spread > tolerance * torch.maximum(stacked[0].abs(), stacked.square().mean().sqrt())
    if float(found.double().mean()) >= TENSOR:
        found = torch.ones_like(found)
    longest = max(float(play[found].norm()) for play in plays)
    return found if float(message[found].norm()) <= LOUDER * longest else torch.zeros_like(found)
