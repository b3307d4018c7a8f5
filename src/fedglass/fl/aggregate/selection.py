"""Rules that accept some updates and reject others by their distances: Krum, Multi-Krum, DnC and BALANCE.

Krum and Multi-Krum accept the updates that lie closest to their neighbours. DnC (divide and conquer) drops those that
stand out along the direction in which the updates differ most. BALANCE accepts those near an update that the server
makes itself.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from fedglass.core.errors import UsageError
from fedglass.core.registry import register
from fedglass.core.rng import stream
from fedglass.fl.aggregate.rule import (
    Aggregated,
    AggregationContext,
    Aggregator,
    State,
    demand,
    mean_of,
    squared_distances,
)

BLANCHARD = (
    "Blanchard, El Mhamdi, Guerraoui, Stainer: Machine Learning with Adversaries: Byzantine Tolerant Gradient Descent, "
    "NeurIPS 2017, https://arxiv.org/abs/1703.02757"
)


NEEDS_REFERENCE = (
    "federation.rule 'balance' compares with an update of the server's own: set federation.server_examples to the "
    "number of examples that it is trained on."
)


def closest(distances: Tensor, byzantine: int) -> Tensor:
    """Return the clients in the order of their Krum scores.  # (n, n) -> (n,)

    Of clients with equal scores, the one that is closer to all others comes first: with one neighbour each, two clients
    that are each other's neighbour have equal scores.
    """
    by_all = distances.sum(dim=1).argsort(stable=True)
    return by_all[krum_scores(distances, byzantine)[by_all].argsort(stable=True)]


def krum_scores(distances: Tensor, byzantine: int) -> Tensor:
    """Return the sum of the n - f - 2 smallest squared distances to others [Blanchard et al., 2017, Sec. 4].

    # (n, n) -> (n,)
    """
    n = len(distances)
    to_others = distances + torch.diag(torch.full((n,), torch.inf, dtype=distances.dtype, device=distances.device))
    return to_others.sort(dim=1).values[:, : n - byzantine - 2].sum(dim=1)


@register("rules", "krum", summary="the one update that lies closest to its neighbours", paper=BLANCHARD)
@dataclass(frozen=True)
class Krum(Aggregator):
    """The client of the lowest score, see `krum_scores` [Blanchard et al., 2017].

    One client's update becomes the server's step, so every receiver of the next model sees that update as the server
    does.
    """

    byzantine: int = 1

    def check(self, clients: int, reference: bool = False) -> None:
        least = 2 * self.byzantine + 3
        demand("krum", "byzantine", self.byzantine, clients, least, "more than twice as many and two")

    def aggregate(self, updates: Tensor, context: AggregationContext, state: State) -> Aggregated:
        self.check(len(updates))
        winner = int(closest(squared_distances(updates), self.byzantine)[0])
        accepted = torch.arange(len(updates), device=updates.device) == winner
        return Aggregated(updates[winner].clone(), accepted)


@register(
    "rules", "multi_krum", summary="the mean of several updates that lie closest to their neighbours", paper=BLANCHARD
)
@dataclass(frozen=True)
class MultiKrum(Aggregator):
    """The mean of `keep` updates that Krum chooses, by default n - f - 2 of them.

    `iterative`: each winner is moved out and the remaining updates are scored again. Otherwise the best of one scoring
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

    def aggregate(self, updates: Tensor, context: AggregationContext, state: State) -> Aggregated:
        self.check(len(updates))
        distances = squared_distances(updates)
        count = self.keep or len(updates) - self.byzantine - 2
        winners = self._one_by_one(distances, count) if self.iterative else closest(distances, self.byzantine)[:count]
        accepted = torch.zeros(len(updates), dtype=torch.bool, device=updates.device)
        accepted[winners] = True
        return mean_of(updates, accepted)

    def _one_by_one(self, distances: Tensor, count: int) -> Tensor:
        candidates, winners = list(range(len(distances))), list[int]()
        for _ in range(count):
            winners.append(candidates.pop(int(closest(distances[candidates][:, candidates], self.byzantine)[0])))
        return torch.tensor(winners, device=distances.device)


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
class DnC(Aggregator):
    """Divide and Conquer [Shejwalkar, Houmansadr, 2021, Algorithm 2].

    `passes` times: on `coordinates` random ones, centred, the int(fraction * byzantine) clients of the largest squared
    projection on the top right singular vector are dropped. The mean is over the clients that no pass drops; if there
    are none, it is the update of the client with the lowest mean score.
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
        """The number of clients that each pass drops."""
        return int(self.fraction * self.byzantine)

    def check(self, clients: int, reference: bool = False) -> None:
        least = max(2 * self.byzantine, self.dropped) + 1
        demand("dnc", "byzantine", self.byzantine, clients, least, "a majority of honest ones")

    def aggregate(self, updates: Tensor, context: AggregationContext, state: State) -> Aggregated:
        n, d = updates.shape
        self.check(n)
        draws = context.generator or stream(0, "dnc", context.round)
        accepted, total = torch.ones(n, dtype=torch.bool), torch.zeros(n, dtype=torch.float64)
        for _ in range(self.passes):
            columns = torch.randperm(d, generator=draws)[: min(self.coordinates, d)]
            scores = outlier_scores(updates[:, columns.to(updates.device)]).cpu()
            total += scores
            accepted[scores.argsort(stable=True)[n - self.dropped :]] = False
        if not bool(accepted.any()):
            accepted[total.argmin()] = True
        return mean_of(updates, accepted.to(updates.device))


def outlier_scores(rows: Tensor) -> Tensor:
    """Return the squared projections of the centred rows on their top right singular vector.  # (n, d) -> (n,)

    By the n x n Gram matrix: with its top eigenpair (lambda, u) the projections are sqrt(lambda) u.
    """
    centred = rows.double()
    centred = centred - centred.mean(dim=0)
    values, vectors = torch.linalg.eigh(centred @ centred.T)
    scores: Tensor = values[-1].clamp(min=0) * vectors[:, -1].square()
    return scores


@register(
    "rules",
    "balance",
    summary="the mean of those that lie near an update of the server's own",
    paper="Fang, Zhang, Hairi, Khanduri, Liu, Lu, Liu, Gong: Byzantine-Robust Decentralized Federated Learning, "
    "CCS 2024, https://arxiv.org/abs/2406.10416",
)
@dataclass(frozen=True)
class Balance(Aggregator):
    """The mean of the updates with |u_ref - u_k| <= phi exp(-decay * round) |u_ref| [after Fang et al., 2024].

    The reference is the update of the server's own examples, trained as the clients train. Rounds count from 0;
    `decay` is their kappa over the number of rounds. There is no good default of `phi`: sweep it, and look at which
    updates are accepted.
    """

    phi: float
    decay: float = 0.0

    def __post_init__(self) -> None:
        if not 0 < self.phi < math.inf or not 0 <= self.decay < math.inf:
            raise UsageError(
                "federation.rule 'balance': phi must be positive and decay at least 0, both finite, got "
                f"{self.phi} and {self.decay}."
            )

    def check(self, clients: int, reference: bool = False) -> None:
        if not reference:
            raise UsageError(NEEDS_REFERENCE)

    def aggregate(self, updates: Tensor, context: AggregationContext, state: State) -> Aggregated:
        if context.reference is None:
            raise UsageError(NEEDS_REFERENCE)
        reference = context.reference.to(updates)
        most = self.phi * math.exp(-self.decay * context.round) * reference.norm()
        # Row by row: no second copy of all updates.
        return mean_of(updates, torch.stack([(reference - row).norm() <= most for row in updates]))
