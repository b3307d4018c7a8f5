"""Aggregation rules: (n, d) -> (d,), with a context and a state; the rule also reports which updates it accepted.

The file holds the protocol, the weighted mean of federated averaging, and the inner products and distances between
updates of millions of coordinates that robust rules compute.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from fedglass.core.errors import UsageError
from fedglass.core.registry import register

State = Any
"""The memory of a rule from round to round; `None` for most."""


COLUMNS = 1 << 12
"""Coordinates at a time: their copy in double precision takes 3 MiB for 100 clients, which a cache holds."""


@dataclass(frozen=True, eq=False)
class AggregationContext:
    """Facts that a rule may use in addition to the updates; a new fact is a new field."""

    weights: Tensor  # (n,), non-negative, the clients' numbers of examples
    round: int = 0
    clients: tuple[str, ...] = ()
    """The senders' names, for a rule that keeps a history of each."""
    before: Tensor | None = None  # (d,), the global model that the clients started from
    previous: Tensor | None = None  # (d,), the step of the round before
    generator: torch.Generator | None = None
    """For a rule that draws at random."""
    reference: Tensor | None = None  # (d,), the update that the server's own examples give, where it has any


@dataclass(frozen=True, eq=False)
class Aggregated:
    """The server's step, the rule's state, and which clients' updates have a part in the step."""

    step: Tensor  # (d,)
    accepted: Tensor  # (n,), bool
    state: State = None


class Aggregator(Protocol):
    """A rule that combines the clients' updates into the server's step.

    Running statistics of normalisation layers are at the end of each row, as they are in real federations. A rule may
    also have `check(clients, reference)`, which refuses, before a federation starts, rounds of so many clients, or a
    server without examples of its own.
    """

    def init(self, weights: Tensor) -> State:
        """Return the state before the first round, from the global model; most rules have none.  # (d,)"""
        return None

    def aggregate(self, updates: Tensor, context: AggregationContext, state: State) -> Aggregated:
        """Combine the updates of one round.  # (n, d) -> (d,)"""
        ...


def demand(rule: str, option: str, value: int, clients: int, least: int, why: str) -> None:
    """Refuse an option that is too large for the number of clients."""
    if value < 0:
        raise UsageError(f"federation.rule {rule!r}: {option} must be at least 0, got {value}.")
    if clients < least:
        raise UsageError(
            f"federation.rule {rule!r} with {option} = {value} needs at least {least} clients in a round ({why}), got "
            f"{clients}: lower {option}, or raise federation.clients or federation.participation."
        )


def mean_of(updates: Tensor, accepted: Tensor, state: State = None) -> Aggregated:
    """Return the plain mean of the accepted updates; a step of zero if there are none."""
    if not bool(accepted.any()):
        return Aggregated(torch.zeros_like(updates[0]), accepted, state)
    return Aggregated((accepted.to(updates) / accepted.sum()) @ updates, accepted, state)


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
class WeightedMean(Aggregator):
    """sum_k n_k u_k / sum_k n_k [McMahan et al., 2017, Algorithm 1]; every update is accepted.

    >>> import torch
    >>> context = AggregationContext(weights=torch.tensor([1.0, 3.0]))
    >>> WeightedMean().aggregate(torch.tensor([[0.0], [4.0]]), context, None).step
    tensor([3.])
    """

    def aggregate(self, updates: Tensor, context: AggregationContext, state: State) -> Aggregated:
        weights = context.weights.to(updates)
        return Aggregated((weights / weights.sum()) @ updates, weights > 0)


def gram(rows: Tensor) -> Tensor:
    """Return all inner products in double precision, without a copy of all rows in it.  # (n, d) -> (n, n)"""
    products = torch.zeros(len(rows), len(rows), dtype=torch.float64, device=rows.device)
    for start in range(0, rows.shape[1], COLUMNS):
        products += _products(rows[:, start : start + COLUMNS].double())
    return (products + products.T) / 2  # (i, j) and (j, i) may round differently, which would break ties


def _products(part: Tensor) -> Tensor:
    """Return part @ part.T; numpy notices that both factors are one matrix, and computes only one triangle."""
    if part.device.type != "cpu":
        return part @ part.T
    rows = part.numpy()
    return torch.from_numpy(rows @ rows.T)


def squared_distances(rows: Tensor) -> Tensor:
    """Return |u_i - u_j|^2 by one Gram matrix; zero on the diagonal.  # (n, d) -> (n, n)

    >>> squared_distances(torch.tensor([[0.0, 0.0], [3.0, 4.0]])).tolist()
    [[0.0, 25.0], [25.0, 0.0]]
    """
    products = gram(rows)
    norms = products.diagonal()
    distances = (norms[:, None] + norms[None, :] - 2 * products).clamp(min=0)
    return distances.fill_diagonal_(0)


def cosine_distances(rows: Tensor) -> Tensor:
    """Return 1 - cos(u_i, u_j); an update of zeros is at distance 1 from every other.  # (n, d) -> (n, n)"""
    products = gram(rows)
    norms = products.diagonal().sqrt()
    cosines = products / (norms[:, None] * norms[None, :]).clamp(min=torch.finfo(torch.float64).tiny)
    return (1 - cosines).clamp(min=0).fill_diagonal_(0)
