"""Does a defended message still hold the undefended one? What an attack overlooks may stand in one tensor of it.

An energy says how well data fit the message as a whole. Noise in one layer drowns what all others say, and of many
weights a share that no energy shows is far beyond chance: neither hides anything from another attack, which may leave
that layer out or weigh the weights otherwise. The audit has both messages, and can look for one in the other.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from scipy.stats import norm, t
from torch import Tensor

from fedglass.core.params import Params

FAR = 5.0
"""Standard deviations beyond which a tensor's share along the undefended one is not by chance."""


ENTRIES = 30
"""That a tensor must have for its noise to be known well enough to weigh it by."""
WHOLE = "all of them together"

Pairs = Mapping[str, tuple[Tensor, Tensor]]
"""By tensor, what was sent and what would have been without a defence.  # (n,) both"""


def remains(message: Params, bare: Params, *later: tuple[Params, Params], far: float = FAR) -> tuple[str, ...]:
    """Where in a message its undefended version stands out from noise: the names of tensors, or all of them together.

    Together, each counts by how little noise it has: that is the matched filter for noise of several sizes. Of `later`
    messages of the same data, each with its undefended version, each is looked at, and all of them at once: what no
    round shows many may.
    """
    rounds = [_pairs(*each) for each in ((message, bare), *later)]
    # What is a layer to one round may be a constant to another.
    whole = {name: _joined([each[name] for each in rounds]) for name in bare if all(name in each for each in rounds)}
    looked_at = [*rounds, whole] if later else rounds
    return tuple(dict.fromkeys(name for pairs in looked_at for name in _standing_out(pairs, far)))


def _pairs(message: Params, bare: Params) -> Pairs:
    return {name: (_flat(message[name]), _flat(plain)) for name, plain in bare.items()}


def _joined(pairs: Sequence[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    return torch.cat([sent for sent, _ in pairs]), torch.cat([plain for _, plain in pairs])


def _standing_out(pairs: Pairs, far: float) -> list[str]:
    found = [name for name, (sent, plain) in pairs.items() if stands_out(sent, plain, far)]
    large = [(sent, plain, _noise(sent, plain)) for sent, plain in pairs.values() if len(sent) >= ENTRIES]
    scaled = [(sent / noise, plain / noise) for sent, plain, noise in large if noise > 0]
    if not found and scaled and stands_out(*_joined(scaled), far):
        found.append(WHOLE)
    return found


def stands_out(sent: Tensor, plain: Tensor, far: float = FAR) -> bool:
    """Whether one vector holds a multiple of another beyond chance: Student's test of a line through the origin.

    Of few entries any two are alike: n of them leave n - 1 degrees of freedom, and one tells nothing.  # (n,) both

    >>> stands_out(torch.arange(9.0), 2 * torch.arange(9.0)), stands_out(torch.tensor([1.0]), torch.tensor([2.0]))
    (True, False)
    """
    along, noise = _along(sent, plain), _noise(sent, plain)
    if along == 0 or len(sent) < 2:
        return False
    return noise == 0 or bool(t.sf(abs(along) / noise, len(sent) - 1) < norm.sf(far))


def _along(sent: Tensor, plain: Tensor) -> float:
    """The length of one vector in the direction of the other."""
    size = float(plain.norm())
    return float(sent @ plain) / size if size > 0 else 0.0


def _noise(sent: Tensor, plain: Tensor) -> float:
    """The deviation of what is left of it, by entry."""
    left = float(sent.square().sum()) - _along(sent, plain) ** 2
    return math.sqrt(max(0.0, left) / max(1, len(sent) - 1))


def _flat(tensor: Tensor) -> Tensor:
    return tensor.detach().cpu().double().flatten()
