"""What an aggregation rule is: (n, d) -> (d,), with a context."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor


@dataclass(frozen=True, eq=False)
class AggregationContext:
    """What a rule may use beside the updates; a new fact is a new field."""

    weights: Tensor  # (n,), non-negative, the clients' numbers of examples
    round: int = 0


class Aggregator(Protocol):
    """Combines the clients' updates into the server's step."""

    def aggregate(self, updates: Tensor, context: AggregationContext) -> Tensor:
        """(n, d) -> (d,)"""
        ...
