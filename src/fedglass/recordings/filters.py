"""What a bundle says of the filters of other frameworks, and why some of them protect nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fedglass.core.errors import FedglassError
from fedglass.core.registry import make
from fedglass.defend.filters import FlowerLocalDP

NAMES = {"PercentilePrivacy": "percentile_privacy", "SVTPrivacy": "svt_privacy"}
"""NVFlare's filters, by the names of their classes, as fedglass calls them."""
BUDGETED = ("svt_privacy", "flower_local_dp")
"""Defences that declare an epsilon."""
DATA_KIND, FULL_WEIGHTS = "data_kind", "WEIGHTS"
"""The option of a filter that says what it acted on, and NVFlare's word for a whole model."""


def draws_poisson(defences: Sequence[Mapping[str, Any]] | None) -> bool:
    """Return whether each local step draws a Poisson sample: the sizes of its batches then vary by chance."""
    return any(part["name"] == "dpsgd_poisson" for part in defences or ())


def same_filter(name: str, declared: Sequence[str]) -> bool:
    """Return whether a filter that a message passed is among the declared defences, by either name."""
    return name in declared or NAMES.get(name) in declared


def filter_problems(defences: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield why recorded filters do not protect an update: they acted on full weights, or their options are wrong."""
    for part in defences:
        name, options = str(part["name"]), dict(part.get("options") or {})
        if name not in NAMES:
            continue
        if options.pop(DATA_KIND, None) == FULL_WEIGHTS:
            yield f"the filter {name!r} acted on full weights, but it is made for differences of weights"
            continue
        options.pop("data_kinds", None)
        try:
            make("defences", NAMES[name], **{key: value for key, value in options.items() if value is not None})
        except (FedglassError, TypeError) as error:
            yield f"the filter {name!r} did nothing, because its options are out of range ({error})"


def local_dp_std(defences: Sequence[Mapping[str, Any]]) -> float:
    """Return the standard deviation of Flower's local noise among the defences; 0 without it."""
    options = next((part.get("options") or {} for part in defences if part["name"] == "flower_local_dp"), None)
    try:
        return 0.0 if options is None else FlowerLocalDP(**options).std
    except (FedglassError, TypeError):
        return 0.0
