"""Inner products and distances between updates of millions of coordinates."""

from __future__ import annotations

import torch
from torch import Tensor

COLUMNS = 1 << 12
"""Coordinates at a time: their copy in double precision takes 3 MiB for 100 clients, which a cache holds."""


def gram(rows: Tensor) -> Tensor:
    """All inner products, in double precision without a copy of all rows in it.  # (n, d) -> (n, n)"""
    found = torch.zeros(len(rows), len(rows), dtype=torch.float64, device=rows.device)
    for start in range(0, rows.shape[1], COLUMNS):
        found += _products(rows[:, start : start + COLUMNS].double())
    return (found + found.T) / 2  # a product may round otherwise from the other side, and a tie would be none


def _products(part: Tensor) -> Tensor:
    """numpy sees that both factors are one matrix, and computes one triangle of the product: half of the work."""
    if part.device.type != "cpu":
        return part @ part.T
    rows = part.numpy()
    return torch.from_numpy(rows @ rows.T)


def squared_distances(rows: Tensor) -> Tensor:
    """|u_i - u_j|^2 by one Gram matrix; zero on the diagonal.  # (n, d) -> (n, n)

    >>> squared_distances(torch.tensor([[0.0, 0.0], [3.0, 4.0]])).tolist()
    [[0.0, 25.0], [25.0, 0.0]]
    """
    products = gram(rows)
    norms = products.diagonal()
    found = (norms[:, None] + norms[None, :] - 2 * products).clamp(min=0)
    return found.fill_diagonal_(0)


def cosine_distances(rows: Tensor) -> Tensor:
    """1 - cos(u_i, u_j); an update of zeros is at distance 1 from every other.  # (n, d) -> (n, n)"""
    products = gram(rows)
    norms = products.diagonal().sqrt()
    cosines = products / (norms[:, None] * norms[None, :]).clamp(min=torch.finfo(torch.float64).tiny)
    return (1 - cosines).clamp(min=0).fill_diagonal_(0)
