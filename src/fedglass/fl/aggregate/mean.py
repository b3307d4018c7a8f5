"""The mean of federated averaging."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from fedglass.core.registry import register
from fedglass.fl.aggregate.rule import Aggregated, AggregationContext, State


@register(
    "rules",
    "mean",
    summary="the mean of the updates, weighted by the clients' numbers of examples",
    paper=(
        "McMahan, Moore, Ramage, Hampson, Agüera y Arcas: Communication-Efficient Learning of Deep Networks from "
        "Decentralized Data, AISTATS 2017, https://arxiv.org/abs/1602.05629"
    ),
)
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
