"""Optimal one-to-one pairing of two sets of images."""

from __future__ import annotations

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor


def squared_distances(left: Tensor, right: Tensor) -> Tensor:
    """Mean squared difference of every pair.  # (n, ...) and (m, ...) -> (n, m)

    >>> squared_distances(torch.zeros(1, 4), torch.tensor([[1.0, 1, 1, 1], [0, 0, 0, 0]]))
    tensor([[1., 0.]], dtype=torch.float64)
    """
    a, b = left.flatten(1).double(), right.flatten(1).double()
    return torch.stack([(row - b).square().mean(1) for row in a])


def assign(cost: Tensor) -> Tensor:
    """The partner of each row that minimises the total cost.  # (n, m >= n) -> (n,)

    >>> assign(torch.tensor([[1.0, 0.0], [0.0, 5.0]]))
    tensor([1, 0])
    """
    rows, columns = linear_sum_assignment(torch.nan_to_num(cost, nan=1e30, posinf=1e30).cpu().numpy())
    partner = torch.empty(cost.shape[0], dtype=torch.int64)
    partner[torch.as_tensor(rows)] = torch.as_tensor(columns)
    return partner
