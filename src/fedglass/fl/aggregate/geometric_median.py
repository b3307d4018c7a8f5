"""The point of least total distance to all updates."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedglass.core.errors import UsageError
from fedglass.core.registry import register
from fedglass.fl.aggregate.rule import Aggregated, AggregationContext, State


@register(
    "rules",
    "geometric_median",
    summary="the point of least total distance to all updates",
    paper="Pillutla, Kakade, Harchaoui: Robust Aggregation for Federated Learning, IEEE TSP 2022, "
    "https://arxiv.org/abs/1912.13445",
)
@dataclass(frozen=True)
class GeometricMedian:
    """argmin_v sum_k n_k |u_k - v| by the smoothed Weiszfeld algorithm [Pillutla et al., 2022, Algorithm 2].

    The search starts at the mean and ends where a step is shorter than `tolerance` times the median
    distance, or after `iterations`. Distances below `smoothing` times that one are counted as such: at an update itself
    the weights would be infinite.
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

    def init(self, weights: Tensor) -> State:
        return None

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
