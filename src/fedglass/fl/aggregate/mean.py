"""The mean of federated averaging."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from fedglass.fl.aggregate.rule import Aggregated, AggregationContext, State


@dataclass(frozen=True)
class WeightedMean:
    """sum_k n_k u_k / sum_k n_k [McMahan et al., 2017, Algorithm 1]; everybody gets through.

    >>> import torch
    >>> context = AggregationContext(weights=torch.tensor([1.0, 3.0]))
    >>> WeightedMean().aggregate(torch.tensor([[0.0], [4.0]]), context, None).step
    tensor([3.])
    """

    def init(self, weights: Tensor) -> State:
        return None

    def aggregate(self, updates: Tensor, context: AggregationContext, state: State) -> Aggregated:
        weights = context.weights.to(updates)
        return Aggregated((weights / weights.sum()) @ updates, weights > 0)
