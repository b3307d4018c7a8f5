"""Paper and measurement side by side."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from fedglass.reproduce.cases import Cell, TrialCase
from fedglass.reproduce.paper import paper_of
from fedglass.reproduce.tables import Printed, Table
from fedglass.verdict.records import Record

# What a table's page draws: along an axis that one case was measured on, or over its rows.


@dataclass(frozen=True)
class Curve:
    """Values at equal distances along an axis from 0 to `last`."""

    title: str
    axis: str
    last: float
    values: Sequence[float]


@dataclass(frozen=True)
class Lines:
    """Points on logarithmic axes, by the name of the line that joins them."""

    title: str
    axis: str
    points: Mapping[str, Sequence[tuple[float, float]]]


@dataclass(frozen=True)
class Chart:
    """A drawing with its caption."""

    title: str
    svg: Markup
    note: str = ""


DEVIATION = "standard deviation"
NO_BETTER = "no better than guessing"


@dataclass(frozen=True)
class Line:
    """One row and method: what the paper prints and what was measured."""

    setting: Sequence[str]
    method: str
    published: Mapping[str, str]
    """Measure -> as text; a dash where the paper has none."""
    measured: Mapping[str, str]
    values_published: Mapping[str, Printed | str | None]
    """The same as numbers."""
    values: Mapping[str, Printed | None]
    done: int
    failed: int
    planned: int
    seconds: float | None
    peak_mib: float | None


def lines(of: Table, cells: Sequence[Cell], records: Mapping[str, Record]) -> list[Line]:
    """The table of all cells, in order."""
    return [_line(of, cell, records) for cell in cells]


def measures_of(record: Record) -> dict[str, float]:
    """All that was measured in one case; hours are those of 100 such cases, as the papers give them."""
    found = record.extra.get("measures")
    known = {k: float(v) for k, v in found.items() if isinstance(v, int | float)} if isinstance(found, dict) else {}
    known["hours"] = record.seconds * 100 / 3600
    if record.peak_mib is not None:
        known["gigabytes"] = record.peak_mib * 2**20 / 1e9
    return known


def curves_of(record: Record) -> list[Curve]:
    """What was measured along an axis in one case."""
    found: Any = record.extra.get("curves", [])
    return [Curve(**each) for each in found]


def lines_of(record: Record) -> list[Lines]:
    """What was measured over one quantity and is drawn on logarithmic axes."""
    found: Any = record.extra.get("lines", [])
    return [Lines(**each) for each in found]


def strips_of(record: Record) -> dict[str, Any]:
    """Where the pictures of one case are: of the originals, of the reconstruction, and of each epoch."""
    found: Any = record.extra.get("strips", {})
    return dict(found)


def spread_in_words(of: Table, cells: Sequence[Cell]) -> str:
    """What stands after ± in the measured columns, or that nothing does."""
    if all(len({case.subject.client for case in cell.cases}) == 1 for cell in cells):
        return "of a single client, which has no spread"
    return f"± {DEVIATION if of.spread == DEVIATION else 'standard error'} over clients"


def is_done(case: TrialCase, records: Mapping[str, Record]) -> bool:
    """Whether the case was run and did not fail."""
    return case.key in records and records[case.key].status == "done"


def by_client(cell: Cell, records: Mapping[str, Record], measure: str) -> list[float]:
    """One value for each client: its average over the settings that the row averages over.

    They share the client's images, so that they are no units of their own.
    """
    values: dict[int, list[float]] = {}
    for case in cell.cases:
        if is_done(case, records) and measure in (known := measures_of(records[case.key])):
            values.setdefault(case.subject.client, []).append(known[measure])
    return [statistics.fmean(own) for own in values.values()]


def number(value: Printed | str | None, digits: int) -> str:
    """A published value as text.

    >>> number(Printed(30.3, 0.3), 1), number(None, 1)
    ('30.3 ± 0.3', '-')
    """
    if isinstance(value, str) or value is None:
        return value or "-"
    spread = "" if value.spread is None else f" ± {value.spread:.{digits}f}"
    return f"{value.mean:.{digits}f}{spread}"


def summarised(values: Sequence[float], of: Table) -> Printed | None:
    """Mean and spread over clients, the spread of the paper's kind; none for a single client.

    Clients are the units: the images of one client share its message and are not independent.
    """
    if not values:
        return None
    if len(values) == 1:
        return Printed(values[0])
    deviation = statistics.stdev(values)
    return Printed(statistics.fmean(values), deviation if of.spread == DEVIATION else deviation / len(values) ** 0.5)


def _line(of: Table, cell: Cell, records: Mapping[str, Record]) -> Line:
    found = [records[case.key] for case in cell.cases if case.key in records]
    done = [record for record in found if record.status == "done"]
    printed = cell.row.values.get(cell.method, {})
    values = {name: by_client(cell, records, name) for name in of.measures}
    derived = {name: of_cell(cell, records) for name, of_cell in paper_of(of).derived.items() if name in of.measures}
    values |= {name: [value] for name, value in derived.items() if value is not None}
    clients = len({case.subject.client for case in cell.cases if is_done(case, records)})
    means = {name: summarised(values[name], of) for name in of.measures}
    peaks = [record.peak_mib for record in done if record.peak_mib is not None]
    return Line(
        [shown(cell.row.setting[field]) for field in of.columns],
        cell.title,
        {name: number(printed.get(name), measure.digits) for name, measure in of.measures.items()},
        {
            name: number(means[name], measure.digits)
            + ("" if name in derived else _share(len(values[name]), clients))
            + _judged(name, cell, records)
            for name, measure in of.measures.items()
        },
        printed,
        means,
        len(done),
        len(found) - len(done),
        len(cell.cases),
        statistics.fmean(record.seconds for record in done) if done else None,
        max(peaks) if peaks else None,
    )


def _judged(measure: str, cell: Cell, records: Mapping[str, Record]) -> str:
    """That an attack is no better than the best guess that needs no message, where both were measured.

    Pictures in another contrast can be far off by RMSE and be recognised all the same: those that came back are told.
    """
    reached, blind, back = (by_client(cell, records, name) for name in (measure, "guess", "back"))
    if measure != "rmse" or not reached or not blind or statistics.fmean(reached) < statistics.fmean(blind):
        return ""
    share = statistics.fmean(back) if back else 0.0
    return f" ({NO_BETTER}{f' by RMSE, but {share:.0f} % came back' if share else ''})"


def _share(told: int, clients: int) -> str:
    """How many clients have the measure, where not all do: LPIPS, say, whose weights were not there at first.

    >>> _share(1, 4), _share(4, 4), _share(0, 4)
    (' (1 of 4)', '', '')
    """
    return f" ({told} of {clients})" if 0 < told < clients else ""


def shown(value: object) -> str:
    """A field of a setting as text.

    >>> shown(True), shown(0.0), shown("FEMNIST"), shown(["normal", "uniform"])
    ('yes', '0', 'FEMNIST', 'average')
    """
    if isinstance(value, list):
        return "average"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "0" if value == 0 else str(value)
