"""Rules that move towards the middle of the updates and accept all of them.

Median and trimmed mean treat every coordinate separately. The geometric median is the point of least total distance to
all updates. Centred clipping limits the distance of each update to the last step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedglass.core.errors import UsageError
from fedglass.core.registry import register
from fedglass.fl.aggregate.rule import COLUMNS, Aggregated, AggregationContext, Aggregator, State, demand

YIN = (
    "Yin, Chen, Kannan, Bartlett: Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates, ICML 2018, "
    "https://arxiv.org/abs/1803.01498"
)

DIFFERENTIATED = 1 << 16
"""Coordinates at a time if a gradient is needed: the backward pass of every part is as long as all of them."""


def median_of(rows: Tensor) -> Tensor:
    """Return the coordinate-wise median; the mean of the two middle values of an even number.  # (n, d) -> (d,)

    >>> median_of(torch.tensor([[1.0], [2.0], [10.0], [4.0]])), median_of(torch.tensor([[1.0], [9.0], [2.0]]))
    (tensor([3.]), tensor([2.]))
    """

    def middle(ordered: Tensor) -> Tensor:
        n = ordered.shape[1]
        return (ordered[:, (n - 1) // 2] + ordered[:, n // 2]) / 2 if n % 2 == 0 else ordered[:, n // 2]

    return _by_columns(rows, middle)


def trimmed_mean_of(rows: Tensor, trim: int) -> Tensor:
    """Return the coordinate-wise mean without the `trim` smallest and largest values.  # (n, d) -> (d,)

    >>> trimmed_mean_of(torch.tensor([[-100.0], [1.0], [2.0], [100.0]]), 1)
    tensor([1.5000])
    """
    return _by_columns(rows, lambda ordered: ordered[:, trim : ordered.shape[1] - trim].mean(dim=1))


def _by_columns(rows: Tensor, of: Callable[[Tensor], Tensor]) -> Tensor:
    """Apply `of` to sorted parts that hold a coordinate's values next to each other: they sort several times faster."""
    simple = rows.device.type == "cpu" and rows.dtype in (torch.float32, torch.float64) and not rows.requires_grad
    count = COLUMNS if simple else DIFFERENTIATED
    parts = []
    for start in range(0, rows.shape[1], count):
        values = rows[:, start : start + count].T.contiguous()
        # numpy sorts by vector instructions: ten times faster than torch, without a gradient.
        parts.append(of(torch.from_numpy(np.sort(values.numpy(), axis=1)) if simple else values.sort(dim=1).values))
    return torch.cat(parts) if parts else rows.sum(dim=0)


def _all_accepted(updates: Tensor) -> Tensor:
    return torch.ones(len(updates), dtype=torch.bool, device=updates.device)


@register("rules", "median", summary="the median of the updates, coordinate by coordinate", paper=YIN)
@dataclass(frozen=True)
class Median(Aggregator):
    """The coordinate-wise median [Yin et al., 2018, Definition 1], all clients alike."""

    def aggregate(self, updates: Tensor, context: AggregationContext, state: State) -> Aggregated:
        return Aggregated(median_of(updates), _all_accepted(updates))


@register(
    "rules", "trimmed_mean", summary="the mean without the largest and smallest values of each coordinate", paper=YIN
)
@dataclass(frozen=True)
class TrimmedMean(Aggregator):
    """The coordinate-wise mean without `byzantine` values at each end [Yin et al., 2018, Definition 2]."""

    byzantine: int = 1

    def check(self, clients: int, reference: bool = False) -> None:
        least = 2 * self.byzantine + 1
        demand("trimmed_mean", "byzantine", self.byzantine, clients, least, "one more than is dropped")

    def aggregate(self, updates: Tensor, context: AggregationContext, state: State) -> Aggregated:
        self.check(len(updates))
        return Aggregated(trimmed_mean_of(updates, self.byzantine), _all_accepted(updates))


@register(
    "rules",
    "geometric_median",
    summary="the point of least total distance to all updates",
    paper="Pillutla, Kakade, Harchaoui: Robust Aggregation for Federated Learning, IEEE TSP 2022, "
    "https://arxiv.org/abs/1912.13445",
)
@dataclass(frozen=True)
class GeometricMedian(Aggregator):
    """argmin_v sum_k n_k |u_k - v| by the smoothed Weiszfeld algorithm [Pillutla et al., 2022, Algorithm 2].

    The search starts at the mean and ends when a step is shorter than `tolerance` times the median distance, or after
    `iterations`. Smaller distances count as `smoothing` times the median distance: at an update itself the weights
    would be infinite.
    """

    iterations: int = 100
    tolerance: float = 1e-7
    smoothing: float = 1e-6

    def __post_init__(self) -> None:
        if self.iterations < 1 or not self.tolerance >= 0 or not self.smoothing > 0:
            raise UsageError(
                "federation.rule 'geometric_median': iterations must be at least 1, tolerance at least 0 and smoothing "
                f"positive, got {self.iterations}, {self.tolerance} and {self.smoothing}."
            )

    def aggregate(self, updates: Tensor, context: AggregationContext, state: State) -> Aggregated:
        shares = context.weights.to(updates)
        point = (shares / shares.sum()) @ updates
        for _ in range(self.iterations):
            distances = torch.stack([(row - point).norm() for row in updates])
            typical = distances.median()
            pulls = shares / distances.clamp(min=self.smoothing * typical + torch.finfo(updates.dtype).tiny)
            moved = (pulls / pulls.sum()) @ updates
            step, point = (moved - point).norm(), moved
            if step <= self.tolerance * typical:
                break
        return Aggregated(point, context.weights.to(updates.device) > 0)


@register(
    "rules",
    "centred_clipping",
    summary="the mean of the updates clipped around the last step",
    paper="Karimireddy, He, Jaggi: Learning from History for Byzantine Robust Optimization, ICML 2021, "
    "https://arxiv.org/abs/2012.10333",
)
@dataclass(frozen=True)
class CentredClipping(Aggregator):
    """v <- v + mean_k (u_k - v) min(1, radius / |u_k - v|), `iterations` times [Karimireddy et al., 2021, Algorithm 2].

    v begins where it ended in the last round, at zero in the first. One client moves it by at most radius / n in each
    iteration, whatever it sends.
    """

    radius: float
    iterations: int = 1

    def __post_init__(self) -> None:
        if not 0 < self.radius < float("inf") or self.iterations < 1:
            raise UsageError(
                "federation.rule 'centred_clipping': radius must be positive and finite and iterations at least 1, got "
                f"{self.radius} and {self.iterations}."
            )

    def init(self, weights: Tensor) -> State:
        return torch.zeros_like(weights)

    def aggregate(self, updates: Tensor, context: AggregationContext, state: State) -> Aggregated:
        centre: Tensor = torch.zeros_like(updates[0]) if state is None else state.to(updates)
        for _ in range(self.iterations):
            # Row by row: no second copy of all updates.
            moves = ((row - centre) * self._share(row - centre) for row in updates)
            centre = centre + sum(moves, torch.zeros_like(centre)) / len(updates)
        return Aggregated(centre, _all_accepted(updates), centre)

    def _share(self, difference: Tensor) -> Tensor:
        length = difference.norm().clamp(min=torch.finfo(difference.dtype).tiny)
        return torch.clamp(self.radius / length, max=1)
