"""What an aggregation rule is: (n, d) -> (d,), with a context, a state of its own, and whose updates got through."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from fedglass.core.errors import UsageError

State = Any
"""What a rule remembers from round to round; `None` for most."""


@dataclass(frozen=True, eq=False)
class AggregationContext:
    """What a rule may use beside the updates; a new fact is a new field."""

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
    """The server's step, what the rule remembers, and whose updates have a part in the step."""

    step: Tensor  # (d,)
    kept: Tensor  # (n,), bool
    state: State = None


class Aggregator(Protocol):
    """Combines the clients' updates into the server's step.

    Running statistics of normalisation layers travel at the end of each row, as they do in real federations.
    """

    def init(self, weights: Tensor) -> State:
        """The state before the first round, from the global model.  # (d,)"""
        ...

    def aggregate(self, updates: Tensor, context: AggregationContext, state: State) -> Aggregated:
        """(n, d) -> (d,)"""
        ...


@runtime_checkable
class Limited(Protocol):
    """A rule that can say beforehand what it can not work with."""

    def check(self, clients: int, reference: bool) -> None:
        """Refuse rounds of so many clients, or a server without examples of its own."""
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


def mean_of(updates: Tensor, kept: Tensor, state: State = None) -> Aggregated:
    """The plain mean of those that were kept; no step where nobody was."""
    if not bool(kept.any()):
        return Aggregated(torch.zeros_like(updates[0]), kept, state)
    return Aggregated((kept.to(updates) / kept.sum()) @ updates, kept, state)
