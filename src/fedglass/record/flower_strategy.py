"""What a Flower strategy says about itself: its rule with options, and the differential privacy wrapped around it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

Part = dict[str, Any]
"""A name and options, as bundles hold rules and defences."""

PLAIN = (bool, int, float, str)


def layers_of(strategy: object) -> Iterator[object]:
    """A strategy, and what it wraps, from the outside in."""
    while strategy is not None:
        yield strategy
        strategy = getattr(strategy, "strategy", None)


def rule_of(strategy: object, clients: int | None = None) -> Part:
    """The innermost strategy's rule, by fedglass's name where it has it, else by its class and plain attributes.

    The class counts that defines how it aggregates: a subclass with a method of its own is another rule.
    """
    inner = list(layers_of(strategy))[-1]
    kind = _aggregating(inner)
    known = _KNOWN.get(kind.__name__) if kind.__module__.startswith("flwr.") else None
    name = type(inner).__name__
    if known is not None:
        rule: Part | None = known(inner, clients)
        if rule is not None:
            return rule
    name = kind.__name__ if kind.__name__ != "Recorded" else name
    return {"name": name, "options": _attributes(inner)}


def privacy_of(strategy: object) -> list[Part]:
    """The wrappers for differential privacy, from the outside in."""
    return [
        {"name": _own_class(layer).__name__, "options": _attributes(layer)}
        for layer in layers_of(strategy)
        if hasattr(layer, "strategy")
    ]


def _aggregating(strategy: object) -> type:
    methods = ("aggregate_train", "aggregate_fit")
    kinds = (kind for kind in type(strategy).__mro__ if not kind.__module__.startswith("fedglass."))
    return next((kind for kind in kinds if any(name in vars(kind) for name in methods)), type(strategy))


def _own_class(strategy: object) -> type:
    return next(kind for kind in type(strategy).__mro__ if not kind.__module__.startswith("fedglass."))


def _attributes(strategy: object) -> dict[str, Any]:
    """Public attributes of plain types."""
    return {
        name: value
        for name, value in vars(strategy).items()
        if not name.startswith("_")
        and isinstance(value, PLAIN)
        and not (isinstance(value, float) and math.isnan(value))
    }


def _mean(strategy: Any, clients: int | None) -> Part:
    return {"name": "mean", "options": {}}


def _median(strategy: Any, clients: int | None) -> Part:
    return {"name": "median", "options": {}}


def _trimmed(strategy: Any, clients: int | None) -> Part | None:
    """Flower's beta is a share of the clients at each end: how many that is depends on the round."""
    if clients is None:
        return None
    return {"name": "trimmed_mean", "options": {"byzantine": int(strategy.beta * clients)}}


def _krum(strategy: Any, clients: int | None) -> Part:
    """Flower's Krum is its Multi-Krum that keeps one."""
    keep, byzantine = strategy.num_nodes_to_select, strategy.num_malicious_nodes
    if keep == 1:
        return {"name": "krum", "options": {"byzantine": byzantine}}
    return {"name": "multi_krum", "options": {"byzantine": byzantine, "keep": keep, "iterative": False}}


_KNOWN: Mapping[str, Any] = {
    "FedAvg": _mean,
    "FedMedian": _median,
    "FedTrimmedAvg": _trimmed,
    "MultiKrum": _krum,
}
"""Those that define how they aggregate; FedProx inherits it from FedAvg."""
