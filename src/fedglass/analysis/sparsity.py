"""How sparse a shared gradient is, and how that goes with what was recovered [K. Zhu et al., 2025, Figure 3]."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from fedglass.core.errors import UsageError


def sparsity(gradient: Iterable[Tensor], tolerance: float = 0.0) -> float:
    """The share of entries outside the support {i : |g_i| > tolerance}, over all layers [K. Zhu et al., 2025, Eq. 1].

    The paper defines the support by g_i != 0 and gives no tolerance for its figure, so that zero is the default.

    >>> sparsity([torch.tensor([0.0, 1.0]), torch.tensor([[0.0, -2.0]])])
    0.5
    """
    if not 0 <= tolerance < math.inf:
        raise UsageError(f"tolerance must be a number of at least 0, got {tolerance}.")
    zeros = entries = 0
    for layer in gradient:
        # A NaN is no zero.
        zeros += int((layer.detach().abs() <= tolerance).sum())
        entries += layer.numel()
    if entries == 0:
        raise UsageError("A gradient without entries has no sparsity: give the tensors of at least one layer.")
    return zeros / entries


def pearson(xs: Sequence[float], ys: Sequence[float]) -> float | None:
    """Pearson's correlation coefficient, in [-1, 1]; None where one of the two does not vary.

    >>> round(pearson([1.0, 2.0, 3.0], [6.0, 4.0, 2.0]), 6)
    -1.0
    """
    if len(xs) != len(ys) or len(xs) < 2:
        raise UsageError(f"A correlation needs two lists of the same length, at least 2, got {len(xs)} and {len(ys)}.")
    x, y = (torch.tensor(values, dtype=torch.float64) for values in (xs, ys))
    if not bool((torch.isfinite(x) & torch.isfinite(y)).all()):
        raise UsageError("A correlation needs finite numbers, got NaN or infinity: leave those pairs out.")
    # By the largest value, so that squares neither vanish nor overflow.
    dx, dy = (_scaled(v - v.mean()) for v in (x, y))
    norms = float(dx.norm() * dy.norm())
    if norms == 0 or len(set(xs)) == 1 or len(set(ys)) == 1:
        return None
    return max(-1.0, min(1.0, float(dx @ dy) / norms))


def _scaled(values: Tensor) -> Tensor:
    largest = values.abs().max()
    return values / largest if float(largest) > 0 else values
