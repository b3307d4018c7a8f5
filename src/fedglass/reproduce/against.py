"""The figures of coarse-to-fine as drawings: PSNR and SSIM over what changes from row to row."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from fedglass.audit.records import Record
from fedglass.report.charts import trade_off
from fedglass.reproduce.cases import Cell, known_methods
from fedglass.reproduce.compare import measures_of, shown
from fedglass.reproduce.curves import Chart
from fedglass.reproduce.tables import Table

DRAWN = {"psnr": ("PSNR", "dB"), "ssim": ("SSIM", "")}
Points = dict[str, list[tuple[float, float]]]


def against(of: Table, cells: Sequence[Cell], records: Mapping[str, Record]) -> list[Chart]:
    """One chart for each measure, where the table says over what."""
    if not of.against:
        return []
    title, found = str(of.against["title"]), []
    for measure, (name, unit) in DRAWN.items():
        series = _series(of, cells, records, measure) if measure in of.measures else {}
        if series:
            heading = f"{name} over {title}"
            found.append(Chart(heading, trade_off(heading, series, title, unit or name)))
    return found


def _series(of: Table, cells: Sequence[Cell], records: Mapping[str, Record], measure: str) -> Points:
    """A line for each method and setting of the other fields; rows without a place on the axis are left out."""
    found: Points = {}
    for cell in cells:
        known = [measures_of(records[case.key]) for case in cell.cases if case.key in records]
        values = [m[measure] for m in known if measure in m]
        place = _place(of, cell.row.setting[of.against["x"]])
        if values and place is not None:
            found.setdefault(_label(of, cell), []).append((place, sum(values) / len(values)))
    return found


def _label(of: Table, cell: Cell) -> str:
    others = [f"{shown(cell.row.setting[field])}" for field in of.columns if field != of.against["x"]]
    return ", ".join([known_methods(of)[cell.method], *others])


def _place(of: Table, value: object) -> float | None:
    """Where a row stands on the axis; `untrained` at zero, words that are no number nowhere."""
    if value == "untrained":
        return 0.0
    try:
        number = float(str(value))
    except ValueError:
        return None
    if of.against.get("log"):
        number = math.log10(number) if 0 < number < math.inf else math.inf
    return number if math.isfinite(number) else None
