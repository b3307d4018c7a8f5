"""Aggregation rules by name."""

from __future__ import annotations

from fedglass.core.registry import make
from fedglass.fl.aggregate.rule import Aggregator


def rule(name: str, **options: object) -> Aggregator:
    """The rule of that name with the given options.

    >>> rule("mean")
    WeightedMean()
    """
    part: Aggregator = make("rules", name, **options)
    return part
