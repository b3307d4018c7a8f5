"""The parts that tables of a plan name, and the defences of a client."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fedglass.core.errors import UsageError
from fedglass.core.registry import factory, find, make
from fedglass.fl.local import GradientFn, MeanGradient
from fedglass.fl.protection import Protection
from fedglass.fl.release import AsIs, Chain, Release
from fedglass.plan.keys import DefenceTable, Named
from fedglass.plan.options import checked_options


def made(kind: str, table: Named) -> Any:
    """The part of that kind which a table names, with the table's options."""
    options = checked_options(find(kind, table.name).title, factory(kind, table.name), table.options)
    return make(kind, table.name, **options)


def defences_of(tables: Sequence[DefenceTable]) -> Protection:
    """At most one gradient function, and the releases one after another."""
    gradients: list[GradientFn] = []
    releases: list[Release] = []
    for table in tables:
        part = made("defences", table)
        if hasattr(part, "gradient"):
            gradients.append(part)
        else:
            releases.append(part)
    if len(gradients) > 1:
        raise UsageError(
            f"defences: at most one may change the gradient of a local step, got {len(gradients)}: keep one."
        )
    release = releases[0] if len(releases) == 1 else Chain(tuple(releases)) if releases else AsIs()
    return Protection(gradients[0] if gradients else MeanGradient(), release)
