"""Updates clipped around what the server believes already."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedglass.core.errors import UsageError
from fedglass.core.registry import register
from fedglass.fl.aggregate.rule import Aggregated, AggregationContext, State


@register(
    "rules",
    "centred_clipping",
    summary="the mean of the updates clipped around the last step",
    paper="Karimireddy, He, Jaggi: Learning from History for Byzantine Robust Optimization, ICML 2021, "
    "https://arxiv.org/abs/2012.10333",
)
@dataclass(frozen=True)
class CentredClipping:
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
        return Aggregated(centre, torch.ones(len(updates), dtype=torch.bool, device=updates.device), centre)

    def _share(self, difference: Tensor) -> Tensor:
        length = difference.norm().clamp(min=torch.finfo(difference.dtype).tiny)
        return torch.clamp(self.radius / length, max=1)
