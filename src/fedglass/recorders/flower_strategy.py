"""What a Flower strategy says about itself: its rule with options, and what is wrapped around it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
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
    """How a strategy makes one model of the replies.

    By fedglass's name where it has that rule, else by its class and plain attributes. The class counts that defines how
    it aggregates: a subclass with a method of its own is another rule. So is a strategy wrapped in another, as that
    for differential privacy, which changes what comes in or goes out.
    """
    outer, *inner = layers_of(strategy)
    if inner:
        return {"name": _own_class(outer).__name__, "options": {**_attributes(outer), "of": rule_of(inner[0], clients)}}
    kind = _aggregating(outer)
    known = _KNOWN.get(kind.__name__) if kind.__module__.startswith("flwr.") else None
    rule: Part | None = None if known is None else known(outer, clients)
    return {"name": kind.__name__, "options": _attributes(outer)} if rule is None else rule


def privacy_spent(strategy: Any) -> dict[str, Any] | None:
    """What a wrapper's accountant has counted so far; None where there is none."""
    spent = strategy.privacy_spent() if hasattr(strategy, "privacy_spent") else None
    return None if spent is None else {name: getattr(spent, name, None) for name in ("epsilon", "delta")}


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


def defences_asked(config: Mapping[str, Any] | None) -> list[Part] | None:
    """What a configuration asks a client to do to its update: whether it does so is its own affair."""
    norm = (config or {}).get("clipping_norm")
    return [{"name": "clip", "options": {"norm": float(norm)}}] if isinstance(norm, int | float) else None


def defences_of(mods: Sequence[Any], config: Mapping[str, Any]) -> list[Part]:
    """What Flower's own mods do to an update, in fedglass's words.

    >>> defences_of([], {})
    []
    """
    found: list[Part] = []
    for mod in mods:
        name = getattr(mod, "__name__", type(mod).__name__)
        if name in ("fixedclipping_mod", "adaptiveclipping_mod"):
            found += defences_asked(config) or []
        if name == "LocalDpMod":
            # The Gaussian mechanism's deviation, as that mod has it [Dwork and Roth, 2014, Theorem A.1].
            std = mod.sensitivity * math.sqrt(2 * math.log(1.25 / mod.delta)) / mod.epsilon
            found.append({"name": "clip", "options": {"norm": float(mod.clipping_norm)}})
            found.append({"name": "gaussian_noise", "options": {"std": std}})
    return found
