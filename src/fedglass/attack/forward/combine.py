"""Aggregation rules as an adversary supposes them: differentiable in the updates that go into them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from fedglass.core.errors import UsageError
from fedglass.fl.aggregate.coordinates import median_of, trimmed_mean_of


class Combination(Protocol):
    """One tensor of the server's step out of those of all clients, coordinate by coordinate."""

    def combine(self, rows: Tensor, shares: Tensor) -> Tensor:
        """Of what the clients sent and what each weighs.  # (n, ...), (n,) -> (...)"""
        ...


@dataclass(frozen=True)
class SupposedMean:
    """sum_m s_m g_m, the mean of federated averaging [Yue et al., 2025, Phi_0]."""

    def combine(self, rows: Tensor, shares: Tensor) -> Tensor:
        mean: Tensor = torch.tensordot(shares, rows, dims=1)
        return mean


@dataclass(frozen=True)
class SoftMedian:
    """sum_m b_m g_m with b_m ~ exp(-|g_m - mean| / T), in each coordinate [ibid., Eq. 18].

    The paper gives no temperature. `temperature` is a share of the coordinate's standard deviation over the clients:
    one for all coordinates would be a mean in some of them and a choice in others.
    """

    temperature: float = 0.3

    def __post_init__(self) -> None:
        if not 0 < self.temperature < math.inf:
            raise UsageError(f"soft_median.temperature must be positive and finite, got {self.temperature}.")

    def combine(self, rows: Tensor, shares: Tensor) -> Tensor:
        middle = rows.mean(dim=0)
        away = rows - middle
        spread = away.square().mean(dim=0).sqrt().detach() + torch.finfo(rows.dtype).tiny
        weights = torch.softmax(-away.abs() / (self.temperature * spread), dim=0)
        return (weights * rows).sum(dim=0)


@dataclass(frozen=True)
class OneClient:
    """g_i of one client i, any of them: the paper draws it at random [ibid., Eq. 21, pseudo-Krum]."""

    client: int = 0

    def __post_init__(self) -> None:
        if self.client < 0:
            raise UsageError(f"one_client.client must be at least 0, got {self.client}.")

    def combine(self, rows: Tensor, shares: Tensor) -> Tensor:
        return rows[self.client % len(rows)]


@dataclass(frozen=True)
class SupposedMedian:
    """The coordinate-wise median itself: its gradient goes to the one or two middle values of each coordinate.

    >>> SupposedMedian().combine(torch.tensor([[1.0], [9.0], [2.0]]), torch.ones(3) / 3)
    tensor([2.])
    """

    def combine(self, rows: Tensor, shares: Tensor) -> Tensor:
        return median_of(rows.flatten(1)).view(rows.shape[1:])


@dataclass(frozen=True)
class SupposedTrimmedMean:
    """The coordinate-wise mean without the `byzantine` smallest and largest values."""

    byzantine: int = 1

    def __post_init__(self) -> None:
        if self.byzantine < 0:
            raise UsageError(f"trimmed_mean.byzantine must be at least 0, got {self.byzantine}.")

    def combine(self, rows: Tensor, shares: Tensor) -> Tensor:
        n = len(rows)
        if n <= 2 * self.byzantine:
            raise UsageError(
                f"A trimmed mean that drops {self.byzantine} at each end needs at least {2 * self.byzantine + 1} "
                f"clients behind the message, got {n}: suppose that fewer are dropped."
            )
        return trimmed_mean_of(rows.flatten(1), self.byzantine).view(rows.shape[1:])
