"""Is the noise of a message drawn anew for every entry, every tensor and every message? Else it cancels.

Two entries that hold the same noise differ by what it was to hide. That is so where the noise of one filter was added
to all of them, where every tensor, client or round begins with the same seed, or where it was drawn once and kept. A
message that noise hides looks like noise by itself: nothing here needs to know what is below it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from fedglass.core.params import Params

FAR = 7.0
"""Standard deviations beyond which two stretches of noise are not alike by chance, in millions of comparisons."""
RARE = 20.0
"""The chance that is left to independent noise is e to the minus this."""
ENTRIES = 64
"""That two stretches must have: fewer can not be told from chance."""
KEPT = 4096
"""Of each tensor that are compared: noise that repeats does so from its first entry on."""


def within(message: Params) -> Iterator[str]:
    """Where noise repeats inside of one message, in words."""
    for name, tensor in message.items():
        if any(_constant_along(tensor.detach().double(), axis) for axis in range(tensor.dim())):
            yield f"{name}: along an axis"
    if not message:
        return
    longest = max(message, key=lambda name: message[name].numel())
    stretch = _stretch(message[longest])
    for name in message:
        if name != longest and _alike(_stretch(message[name]), stretch):
            yield f"{name}: as in {longest}"


def between(message: Params, others: Mapping[str, Params]) -> Iterator[str]:
    """Which other messages hold the same noise, by what they are called."""
    own = {name: _stretch(tensor) for name, tensor in message.items()}
    for words, other in others.items():
        if any(name in other and _alike(stretch, _stretch(other[name])) for name, stretch in own.items()):
            yield words


def _constant_along(tensor: Tensor, axis: int) -> bool:
    """Whether means along an axis are longer than those of independent entries.

    Of n entries each, m means have n sum(mean^2) / s^2 distributed as chi-squared of m degrees of freedom, whose tail
    is bounded by Laurent and Massart, 2000, Lemma 1. The entries' own mean square stands for s^2.
    """
    total, count = float(tensor.square().sum()), tensor.shape[axis]
    if total == 0 or count < 2 or not math.isfinite(total):
        return False
    means = tensor.numel() // count
    ratio = count**2 * float(tensor.mean(axis).square().sum()) / total
    return ratio > 1 + 2 * math.sqrt(RARE / means) + 2 * RARE / means


def _alike(one: Tensor, other: Tensor) -> bool:
    """Whether two stretches of noise are correlated beyond chance, from the first entry on."""
    count = min(len(one), len(other))
    if count < ENTRIES:
        return False
    one, other = one[:count], other[:count]
    size = float(one.norm()) * float(other.norm())
    return size > 0 and abs(float(one @ other)) * math.sqrt(count) > FAR * size


def _stretch(tensor: Tensor) -> Tensor:
    return torch.flatten(tensor.detach())[:KEPT].cpu().double()
