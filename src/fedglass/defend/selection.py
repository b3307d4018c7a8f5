"""Choosing exactly so many entries."""

from __future__ import annotations

import torch
from torch import Tensor

from fedglass.core.selection import kth_smallest


def lowest(values: Tensor, count: int) -> Tensor:
    """True at exactly `count` of the lowest entries; among equal ones those that come first.  # (d,) -> (d,) bool

    A threshold alone would take all or none of the entries that are equal to it.

    >>> lowest(torch.tensor([3.0, 1.0, 1.0, 2.0]), 1)
    tensor([False,  True, False, False])
    """
    if count == 0:
        return torch.zeros_like(values, dtype=torch.bool)
    threshold = kth_smallest(values, count)
    below = values < threshold
    equal = values == threshold
    return below | (equal & (equal.cumsum(0) <= count - below.sum()))


def count_of(share: float, entries: int) -> int:
    """The share of that many entries, to the nearest whole number.

    >>> count_of(0.7, 10), count_of(0.0, 10)
    (7, 0)
    """
    return round(share * entries)
