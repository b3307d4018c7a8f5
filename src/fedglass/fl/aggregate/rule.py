"""What an aggregation rule is: (n, d) -> (d,), with a context, a state of its own, and whose updates got through."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

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
