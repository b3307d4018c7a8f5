"""The defences of other frameworks under the names of fedglass, with options that it can run again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import fields
from typing import Any

from fedglass.core.errors import UsageError
from fedglass.defend.filters import PercentilePrivacy, SVTPrivacy
from fedglass.recordings.filters import DATA_KIND, FULL_WEIGHTS, NAMES

Part = dict[str, Any]
"""A name and options, as bundles hold rules and defences."""
NVFLARE = {"PercentilePrivacy": PercentilePrivacy, "SVTPrivacy": SVTPrivacy}
SVT_LEDGER = "get_privacy_ledger"
CLIPPING_MODS = ("fixedclipping_mod", "adaptiveclipping_mod")


def nvflare_defence(part: object, options: Mapping[str, Any], kind: str, steps: object) -> Part:
    """Return a filter of NVFlare as a defence of fedglass, where it acts as one; else by its class with all options.

    A filter of full weights is not a defence of an update, and one with options out of range does nothing. `steps` is
    what the message says of its local steps, by which these filters divide. SVTPrivacy has a ledger since NVFlare 2.9,
    and was another mechanism before.
    """
    name = type(part).__name__
    raw = {"name": name, "options": dict(options)}
    filter_class = NVFLARE.get(name)
    if filter_class is None or (filter_class is SVTPrivacy and not hasattr(part, SVT_LEDGER)):
        return raw
    if kind == FULL_WEIGHTS:
        return {"name": name, "options": {**options, DATA_KIND: kind}}
    known = {field.name for field in fields(filter_class)}
    mapped = {option: value for option, value in options.items() if option in known and value is not None}
    mapped["steps"] = steps if isinstance(steps, int | float) else 1
    with suppress(UsageError):
        filter_class(**mapped)
        return {"name": NAMES[name], "options": mapped}
    return raw


def flower_clipping(config: Mapping[str, Any] | None, *, adaptive: bool) -> list[Part] | None:
    """Return the clipping that a configuration asks of a client; whether the client obeys is unknown."""
    norm = (config or {}).get("clipping_norm")
    if isinstance(norm, bool) or not isinstance(norm, int | float):
        return None
    marked = {"adaptive": True} if adaptive else {}
    return [{"name": "flower_fixed_clipping", "options": {"clipping_norm": float(norm), **marked}}]


def is_adaptive(strategies: Sequence[object]) -> bool:
    """Return whether one of these strategies, which wrap each other, adapts the norm to the data."""
    return any("AdaptiveClipping" in kind.__name__ for strategy in strategies for kind in type(strategy).__mro__)


def flower_defences(mods: Sequence[Any], config: Mapping[str, Any]) -> list[Part]:
    """Return the defences that Flower's own mods apply to an update, under fedglass's names.

    >>> flower_defences([], {})
    []
    """
    defences: list[Part] = []
    for mod in mods:
        name = getattr(mod, "__name__", type(mod).__name__)
        if name in CLIPPING_MODS:
            defences += flower_clipping(config, adaptive=name == "adaptiveclipping_mod") or []
        if name == "LocalDpMod":
            options = {key: float(getattr(mod, key)) for key in ("clipping_norm", "sensitivity", "epsilon", "delta")}
            defences.append({"name": "flower_local_dp", "options": options})
    return defences
