"""Facts that a Flower strategy and its mods show: the aggregation rule with options, and defences."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

Part = dict[str, Any]
"""A name and options, as bundles hold rules and defences."""

PLAIN = (bool, int, float, str)


def layers_of(strategy: object) -> Iterator[object]:
    """Yield a strategy and the strategies that it wraps, from the outside in."""
    while strategy is not None:
        yield strategy
        strategy = getattr(strategy, "strategy", None)


def rule_of(strategy: object, clients: int | None = None) -> Part:
    """Return the rule that makes one model of the replies.

    The rule has fedglass's name if fedglass has it, else the name of its class with plain attributes. The class that
    defines the aggregation counts: a subclass with a method of its own is another rule. A strategy that wraps another
    one is a rule of its own too: a wrapper for differential privacy changes what comes in or goes out.
    """
    outer, *inner = layers_of(strategy)
    if inner:
        return {"name": _own_class(outer).__name__, "options": {**_attributes(outer), "of": rule_of(inner[0], clients)}}
    kind = _aggregating(outer)
    make_rule = _RULES.get(kind.__name__) if kind.__module__.startswith("flwr.") else None
    rule: Part | None = None if make_rule is None else make_rule(outer, clients)
    return {"name": kind.__name__, "options": _attributes(outer)} if rule is None else rule


def privacy_spent(strategy: Any) -> dict[str, Any] | None:
    """Return the privacy budget that a wrapper's accountant has counted so far; None without an accountant."""
    spent = strategy.privacy_spent() if hasattr(strategy, "privacy_spent") else None
    return None if spent is None else {name: getattr(spent, name, None) for name in ("epsilon", "delta")}


def _classes(strategy: object) -> Iterator[type]:
    """Yield the classes of a strategy without those of fedglass."""
    return (kind for kind in type(strategy).__mro__ if not kind.__module__.startswith("fedglass."))


def _aggregating(strategy: object) -> type:
    """Return the class that defines how a strategy aggregates."""
    methods = ("aggregate_train", "aggregate_fit")
    defining = (kind for kind in _classes(strategy) if any(name in vars(kind) for name in methods))
    return next(defining, type(strategy))


def _own_class(strategy: object) -> type:
    return next(_classes(strategy))


def _attributes(strategy: object) -> dict[str, Any]:
    """Return public attributes of plain types."""
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
    """Flower's beta is a share of the clients at each end: the number depends on the round."""
    if clients is None:
        return None
    return {"name": "trimmed_mean", "options": {"byzantine": int(strategy.beta * clients)}}


def _krum(strategy: Any, clients: int | None) -> Part:
    """Flower's Krum is its Multi-Krum that selects one client."""
    selected, byzantine = strategy.num_nodes_to_select, strategy.num_malicious_nodes
    if selected == 1:
        return {"name": "krum", "options": {"byzantine": byzantine}}
    return {"name": "multi_krum", "options": {"byzantine": byzantine, "keep": selected, "iterative": False}}


_RULES: Mapping[str, Any] = {
    "FedAvg": _mean,
    "FedMedian": _median,
    "FedTrimmedAvg": _trimmed,
    "MultiKrum": _krum,
}
"""Flower's classes that define how they aggregate; FedProx inherits it from FedAvg."""


def requested_defences(config: Mapping[str, Any] | None) -> list[Part] | None:
    """Return the defences that a configuration asks of a client; whether the client obeys is unknown."""
    norm = (config or {}).get("clipping_norm")
    return [{"name": "clip", "options": {"norm": float(norm)}}] if isinstance(norm, int | float) else None


def defences_of(mods: Sequence[Any], config: Mapping[str, Any]) -> list[Part]:
    """Return the defences that Flower's own mods apply to an update, under fedglass's names.

    >>> defences_of([], {})
    []
    """
    defences: list[Part] = []
    for mod in mods:
        name = getattr(mod, "__name__", type(mod).__name__)
        if name in ("fixedclipping_mod", "adaptiveclipping_mod"):
            defences += requested_defences(config) or []
        if name == "LocalDpMod":
            # The deviation of the Gaussian mechanism, as that mod computes it [Dwork and Roth, 2014, Theorem A.1].
            std = mod.sensitivity * math.sqrt(2 * math.log(1.25 / mod.delta)) / mod.epsilon
            defences.append({"name": "clip", "options": {"norm": float(mod.clipping_norm)}})
            defences.append({"name": "gaussian_noise", "options": {"std": std}})
    return defences
