"""Divide and conquer: those that stand out along the direction in which the updates differ most are dropped."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedglass.core.errors import UsageError
from fedglass.core.registry import register
from fedglass.core.rng import stream
from fedglass.fl.aggregate.rule import Aggregated, AggregationContext, State, demand, mean_of


@register(
    "rules",
    "dnc",
    summary="drops those that stand out along the main direction of difference",
    paper=(
        "Shejwalkar, Houmansadr: Manipulating the Byzantine: Optimizing Model Poisoning Attacks and Defenses for "
        "Federated Learning, NDSS 2021, https://doi.org/10.14722/ndss.2021.24498"
    ),
)
@dataclass(frozen=True)
class DnC:
    """Divide and Conquer [Shejwalkar, Houmansadr, 2021, Algorithm 2].

    `passes` times: on `coordinates` random ones, centred, the int(fraction * byzantine) clients of the largest squared
    projection on the top right singular vector are dropped. The mean is over those that every pass keeps; where there
    are none, over the one of the lowest mean score.
    """

    byzantine: int = 1
    fraction: float = 1.0
    passes: int = 5
    coordinates: int = 10_000

    def __post_init__(self) -> None:
        if not 0 <= self.fraction < float("inf") or self.passes < 1 or self.coordinates < 1:
            raise UsageError(
                "federation.rule 'dnc': fraction must be at least 0, passes and coordinates at least 1, got "
                f"{self.fraction}, {self.passes} and {self.coordinates}."
            )

    @property
    def dropped(self) -> int:
        """In each pass."""
        return int(self.fraction * self.byzantine)

    def check(self, clients: int, reference: bool = False) -> None:
        least = max(2 * self.byzantine, self.dropped) + 1
        demand("dnc", "byzantine", self.byzantine, clients, least, "a majority of honest ones")

    def init(self, weights: Tensor) -> State:
        return None

    def aggregate(self, updates: Tensor, context: AggregationContext, state: State) -> Aggregated:
        n, d = updates.shape
        self.check(n)
        draws = context.generator or stream(0, "dnc", context.round)
        kept, total = torch.ones(n, dtype=torch.bool), torch.zeros(n, dtype=torch.float64)
        for _ in range(self.passes):
            columns = torch.randperm(d, generator=draws)[: min(self.coordinates, d)]
            scores = outlier_scores(updates[:, columns.to(updates.device)]).cpu()
            total += scores
            kept[scores.argsort(stable=True)[n - self.dropped :]] = False
        if not bool(kept.any()):
            kept[total.argmin()] = True
        return mean_of(updates, kept.to(updates.device))


def outlier_scores(rows: Tensor) -> Tensor:
    """Squared projections of the centred rows on their top right singular vector.  # (n, d) -> (n,)

    By the n x n Gram matrix: with its top eigenpair (lambda, u) the projections are sqrt(lambda) u.
    """
    centred = rows.double()
    centred = centred - centred.mean(dim=0)
    values, vectors = torch.linalg.eigh(centred @ centred.T)
    scores: Tensor = values[-1].clamp(min=0) * vectors[:, -1].square()
    return scores
