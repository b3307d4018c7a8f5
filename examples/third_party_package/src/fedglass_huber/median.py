"""An aggregation rule that a minority of poisoners can not drag away."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedglass.fl.aggregate.rule import Aggregated, AggregationContext, State


@dataclass(frozen=True)
class CoordinateMedian:
    """The median of the updates, entry by entry [Yin et al., 2018, Definition 1]; everybody gets through."""

    def init(self, weights: Tensor) -> State:
        return None

    def aggregate(self, updates: Tensor, context: AggregationContext, state: State) -> Aggregated:
        step = updates.quantile(0.5, dim=0)  # (n, d) -> (d,), the mean of the middle two where n is even
        return Aggregated(step, torch.ones(len(updates), dtype=torch.bool))
