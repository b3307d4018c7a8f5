"""Optimal one-to-one pairing of two sets of images."""

from __future__ import annotations

import scipy  # its parts are imported when they are first used
import torch
from torch import Tensor

NEAR = 1e-6
"""Share of the two images' squares below which a distance is computed by itself: the product below is exact to about
1e-16 of these squares, so that every distance is exact to ten digits."""


def squared_distances(left: Tensor, right: Tensor) -> Tensor:
    """Mean squared difference of every pair.  # (n, ...) and (m, ...) -> (n, m)

    >>> squared_distances(torch.zeros(1, 4), torch.tensor([[1.0, 1, 1, 1], [0, 0, 0, 0]]))
    tensor([[1., 0.]], dtype=torch.float64)
    """
    a, b = left.flatten(1).double(), right.flatten(1).double()
    own, other = a.square().sum(1), b.square().sum(1)
    if _repeats(own) or _repeats(other):
        return torch.stack([_to_each(image, b) for image in a])
    squares = own[:, None] + other
    table = (squares - 2 * a @ b.T) / a.shape[1]
    near = table * a.shape[1] < NEAR * squares
    for i in near.any(1).nonzero().flatten().tolist():
        table[i, near[i]] = _to_each(a[i], b[near[i]])
    return table


def assign(cost: Tensor) -> Tensor:
    """The partner of each row that minimises the total cost.  # (n, m >= n) -> (n,)

    >>> assign(torch.tensor([[1.0, 0.0], [0.0, 5.0]]))
    tensor([1, 0])
    """
    table = torch.nan_to_num(cost, nan=1e30, posinf=1e30).cpu()
    lowest = table.min(1)
    if int((table == lowest.values[:, None]).sum()) == len(table) == len(set(lowest.indices.tolist())):
        return lowest.indices  # each row has one cheapest partner, and no two rows the same
    rows, columns = scipy.optimize.linear_sum_assignment(table.numpy())
    partner = torch.empty(cost.shape[0], dtype=torch.int64)
    partner[torch.as_tensor(rows)] = torch.as_tensor(columns)
    return partner


def _to_each(image: Tensor, others: Tensor) -> Tensor:
    """Mean squared difference from one image to each of others.  # (d,) and (m, d) -> (m,)"""
    return (image - others).square().mean(1)


def _repeats(squares: Tensor) -> bool:
    """Whether two images may be the same: their costs then tie, and the last bits decide who is paired with whom."""
    return len(set(squares.tolist())) < len(squares)
