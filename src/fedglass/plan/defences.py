"""The parts that tables of a plan name, and the defences of a client."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fedglass.core.registry import factory, find, make
from fedglass.fl.protection import Protection
from fedglass.plan.keys import DefenceTable, Named
from fedglass.plan.options import checked_options


def made(kind: str, table: Named) -> Any:
    """The part of that kind which a table names, with the table's options."""
    options = checked_options(find(kind, table.name).title, factory(kind, table.name), table.options)
    return make(kind, table.name, **options)


def defences_of(tables: Sequence[DefenceTable]) -> Protection:
    """At most one gradient function, and the releases one after another."""
    return Protection.of([made("defences", table) for table in tables])
