"""Is the noise of a message that of the declared defence? The defence can be played again, its random numbers can not.

If all is as declared, message and replays are draws from one distribution, and nothing may tell the message apart.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations
from typing import Literal

import torch
from torch import Tensor

Fit = Literal["as declared", "too little", "too much", "other data", "another kind", "too few weights"]

TOLERANCE = 0.1
"""The share by which distances may differ. A message without noise is nearer by 1 - 1/sqrt(2) = 0.29 than declared."""
WIDTHS = 3.0
"""Standard deviations of chance that are allowed beside it: a distance over d entries varies by about 1/sqrt(d)."""
LARGEST = 0.25
"""Tolerance from which on a message without noise could pass for one with it."""
FAR = 5.0
"""Standard deviations beyond which the message's share along the undefended one is not by chance."""
SHAPE, RARE = 0.02, 2.7
"""By which two distributions must differ, and by chance may: this over the root of the number of entries."""
MOST = 200_000
"""Entries of each that are compared in distribution: more tell no more."""


def noise_fit(message: Sequence[Tensor], tries: Sequence[Sequence[Tensor]], bare: Sequence[Tensor]) -> Fit:
    """How a message lies among replays with the declared defence; `bare` is the replay without it."""
    sent, drawn, plain = _flat(message), [_flat(each) for each in tries], _flat(bare)
    tolerance = TOLERANCE + WIDTHS / math.sqrt(len(sent))
    if tolerance >= LARGEST:
        return "too few weights"
    among = [float((one - other).norm()) for one, other in combinations(drawn, 2)]
    usual = sum(among) / len(among)
    nearness = sum(float((each - sent).norm()) for each in drawn) / len(drawn) / usual
    if not 1 - tolerance <= nearness:
        return "too little"
    if not nearness <= 1 + tolerance:
        return "too much"
    if _aside(sent, drawn, plain, usual) > FAR:
        return "other data"
    return "another kind" if _of_another_shape(sent, torch.cat(drawn)) else "as declared"


def _aside(sent: Tensor, drawn: Sequence[Tensor], plain: Tensor, usual: float) -> float:
    """How far the message's share along the undefended one lies from that of the replays, in standard deviations.

    Noise that is long beside the undefended message hides in a distance what this still shows: the matched filter.
    """
    size = float(plain.norm())
    if size == 0:
        return 0.0
    shares = torch.stack([each @ plain for each in drawn]) / size
    spread = max(float(shares.std()), usual / math.sqrt(2 * len(sent)))
    return abs(float(sent @ plain) / size - float(shares.mean())) / (spread * math.sqrt(1 + 1 / len(drawn)))


def _of_another_shape(sent: Tensor, drawn: Tensor) -> bool:
    """Whether the entries are distributed otherwise: the test of Kolmogorov and Smirnov.

    Noise of a few values is as long as any other, and hides nothing: who knows them subtracts the nearest.
    """
    drawn, sent = (each[:: math.ceil(len(each) / MOST)].sort().values for each in (drawn, sent))
    both = torch.cat([sent, drawn])
    shares = [torch.searchsorted(each, both, right=True).double() / len(each) for each in (sent, drawn)]
    chance = RARE * math.sqrt(1 / len(sent) + 1 / len(drawn))
    return float((shares[0] - shares[1]).abs().max()) > max(SHAPE, chance)


def _flat(tensors: Sequence[Tensor]) -> Tensor:
    return torch.cat([t.double().reshape(-1) for t in tensors])
