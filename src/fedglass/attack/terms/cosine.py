"""The cosine between two messages: the one loop behind every term that compares directions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import repeat

import torch
from torch import Tensor

Weights = Sequence[float] | None
"""One for each tensor of the message; None where all count alike."""


def products(predicted: Iterable[Tensor], target: Sequence[Tensor], weights: Weights = None) -> tuple[Tensor, Tensor]:
    """sum_l w_l <g_l, y_l> and sum_l w_l |g_l|^2 over the tensors of a message, given as vectors.

    >>> g, y = [torch.tensor([1.0, 2.0]), torch.tensor([3.0])], [torch.tensor([1.0, 1.0]), torch.tensor([2.0])]
    >>> products(g, y), products(g, y, [1.0, 0.5])
    ((tensor(9.), tensor(14.)), (tensor(6.), tensor(9.5000)))
    """
    product: Tensor | float = 0.0
    square: Tensor | float = 0.0
    # A dot product of vectors needs no temporary of their size.
    for g, y, w in zip(predicted, target, _each(weights, len(target)), strict=True):
        if w is None:
            product = product + torch.dot(g, y)
            square = square + torch.dot(g, g)
        else:
            product = product + w * torch.dot(g, y)
            square = square + w * torch.dot(g, g)
    return torch.as_tensor(product), torch.as_tensor(square)


def norm(target: Sequence[Tensor], weights: Weights = None) -> Tensor:
    """The square root of sum_l w_l |y_l|^2, the tensors given as vectors."""
    rows = zip(target, _each(weights, len(target)), strict=True)
    return torch.stack([torch.dot(y, y) if w is None else w * torch.dot(y, y) for y, w in rows]).sum().sqrt()


def _each(weights: Weights, tensors: int) -> Iterable[float | None]:
    return repeat(None, tensors) if weights is None else weights
