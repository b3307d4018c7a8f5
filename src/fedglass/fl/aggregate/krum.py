"""Krum and Multi-Krum: the updates that lie closest to their neighbours."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedglass.core.errors import UsageError
from fedglass.core.registry import register
from fedglass.fl.aggregate.geometry import squared_distances
from fedglass.fl.aggregate.rule import Aggregated, AggregationContext, State, demand, mean_of

BLANCHARD = (
    "Blanchard, El Mhamdi, Guerraoui, Stainer: Machine Learning with Adversaries: Byzantine Tolerant Gradient Descent, "
    "NeurIPS 2017, https://arxiv.org/abs/1703.02757"
)


def closest(distances: Tensor, byzantine: int) -> Tensor:
    """The clients by their scores; of equal ones that first which is closer to all others.  # (n, n) -> (n,)

    With one neighbour each, two that are each other's have equal scores.
    """
    by_all = distances.sum(dim=1).argsort(stable=True)
    return by_all[krum_scores(distances, byzantine)[by_all].argsort(stable=True)]


def krum_scores(distances: Tensor, byzantine: int) -> Tensor:
    """The sum of the n - f - 2 smallest squared distances to others [Blanchard et al., 2017, Sec. 4].

    # (n, n) -> (n,)
    """
    n = len(distances)
    others = distances + torch.diag(torch.full((n,), torch.inf, dtype=distances.dtype, device=distances.device))
    return others.sort(dim=1).values[:, : n - byzantine - 2].sum(dim=1)


@register("rules", "krum", summary="the one update that lies closest to its neighbours", paper=BLANCHARD)
@dataclass(frozen=True)
class Krum:
    """The client of the lowest score, see `krum_scores` [Blanchard et al., 2017].

    One client's update becomes the server's step: whoever receives the next model sees that client as the server does.
    """

    byzantine: int = 1

    def check(self, clients: int, reference: bool = False) -> None:
        least = 2 * self.byzantine + 3
        demand("krum", "byzantine", self.byzantine, clients, least, "more than twice as many and two")

    def init(self, weights: Tensor) -> State:
        return None

    def aggregate(self, updates: Tensor, context: AggregationContext, state: State) -> Aggregated:
        self.check(len(updates))
        winner = int(closest(squared_distances(updates), self.byzantine)[0])
        kept = torch.arange(len(updates), device=updates.device) == winner
        return Aggregated(updates[winner].clone(), kept)


@register(
    "rules", "multi_krum", summary="the mean of several updates that lie closest to their neighbours", paper=BLANCHARD
)
@dataclass(frozen=True)
class MultiKrum:
    """The mean of `keep` updates that Krum chooses, n - f - 2 of them where that is not said.

    `iterative`: each winner is moved out and the rest is scored again. Otherwise the best of one scoring
    [Blanchard et al., 2017, Sec. 4].
    """

    byzantine: int = 1
    keep: int | None = None
    iterative: bool = True

    def check(self, clients: int, reference: bool = False) -> None:
        least = 2 * self.byzantine + 3
        demand("multi_krum", "byzantine", self.byzantine, clients, least, "more than twice as many and two")
        most = clients - self.byzantine - 2 if self.iterative else clients
        if self.keep is not None and not 1 <= self.keep <= most:
            raise UsageError(
                f"federation.rule 'multi_krum': keep must be between 1 and {most} for rounds of {clients} clients with "
                f"byzantine = {self.byzantine}, got {self.keep}."
            )

    def init(self, weights: Tensor) -> State:
        return None

    def aggregate(self, updates: Tensor, context: AggregationContext, state: State) -> Aggregated:
        self.check(len(updates))
        distances = squared_distances(updates)
        count = self.keep or len(updates) - self.byzantine - 2
        winners = self._one_by_one(distances, count) if self.iterative else self._at_once(distances, count)
        kept = torch.zeros(len(updates), dtype=torch.bool, device=updates.device)
        kept[winners] = True
        return mean_of(updates, kept)

    def _at_once(self, distances: Tensor, count: int) -> list[int]:
        return [int(i) for i in closest(distances, self.byzantine)[:count]]

    def _one_by_one(self, distances: Tensor, count: int) -> list[int]:
        left, winners = list(range(len(distances))), list[int]()
        for _ in range(count):
            winners.append(left.pop(int(closest(distances[left][:, left], self.byzantine)[0])))
        return winners
