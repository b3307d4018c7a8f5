"""A sweep: one federation for each value of an option of a defence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from fedglass.core.errors import UsageError, unknown_name
from fedglass.plan.federation_table import FederationTable
from fedglass.plan.keys import DefenceTable


@dataclass(frozen=True)
class Point:
    """A federation with the defences that it is to have."""

    table: FederationTable
    defences: Sequence[DefenceTable]
    swept: dict[str, float] = field(default_factory=dict)
    """The option and its value here; empty without a sweep."""


def points(table: FederationTable, defences: Sequence[DefenceTable]) -> list[Point]:
    """One without a sweep, else one for each value, named after it."""
    sweep = table.sweep
    if sweep is None:
        return [Point(table, defences if table.defended else ())]
    names = [defence.name for defence in defences]
    if names.count(sweep.defence) > 1:
        raise UsageError(f"federation.sweep: the plan has {sweep.defence!r} more than once: keep one of them.")
    if sweep.defence not in names:
        raise UsageError(f"federation.sweep: {unknown_name('defence of the plan', sweep.defence, names)}")
    found = []
    for value in sweep.values:
        own = [_with(each, sweep.option, value) if each.name == sweep.defence else each for each in defences]
        name = f"{table.name}{', ' if table.name else ''}{sweep.option} {value:g}"
        found.append(Point(table.model_copy(update={"name": name}), own, {sweep.option: float(value)}))
    return found


def _with(table: DefenceTable, option: str, value: float) -> DefenceTable:
    return DefenceTable.model_validate({"name": table.name, **table.options, option: value})
