"""How strong an attack's prior should be, found by an experiment that the adversary can do itself.

The attack is played on a decoy (`attack.decoys`) with its priors times several factors. The adversary knows its own
decoys, so that it may choose by how near it came to them. Nothing here can see the private data.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedglass.attack.decoys import Decoy
from fedglass.attack.hypotheses import AnyAttack
from fedglass.attack.parts import Progress, silent
from fedglass.attack.starts import part
from fedglass.core.assignment import assign


@dataclass(frozen=True, eq=False)
class Trial:
    """What an attack made of a decoy with its priors times a factor."""

    factor: float
    error: float
    """The mean squared error of the decoys' pixels; infinite where the attack failed."""


def tried_on(
    decoy: Decoy, attack: AnyAttack, factors: Sequence[float], seed: int, progress: Progress = silent
) -> list[Trial]:
    """Every factor tried on the decoy, the best first; of equals the one that was named first."""
    found = []
    for i, factor in enumerate(factors):
        run = attack.weakened(factor).run(decoy.observation, seed, part(progress, i, len(factors)))
        knows = decoy.observation.knows
        found.append(Trial(factor, matched_error(run.images.clamp(knows.low, knows.high), decoy.images)))
    return sorted(found, key=lambda trial: trial.error)


def matched_error(reconstructed: Tensor, images: Tensor) -> float:
    """The mean squared error under the best pairing, since a message has no order.  # (n, c, h, w) both

    >>> a, b = torch.zeros(1, 1, 2, 2), torch.ones(1, 1, 2, 2)
    >>> matched_error(torch.cat([a, b]), torch.cat([b, a]))
    0.0
    """
    if reconstructed.shape != images.shape or not torch.isfinite(reconstructed).all():
        return math.inf
    table = torch.stack([(image - reconstructed).square().flatten(1).mean(1) for image in images])  # (n, n)
    return float(table[torch.arange(len(images)), assign(table).to(table.device)].mean())
