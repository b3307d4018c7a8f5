"""Charts of a re-creation: measures over the rows of a table, along a training, and plots of single cases."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from fedglass.report.charts import line_chart, trade_off
from fedglass.reproduce.cases import Cell
from fedglass.reproduce.compare import measures_of, values_by_client
from fedglass.reproduce.tables import Row, Table, setting_text
from fedglass.verdict.records import Record

DRAWN = {"psnr": ("PSNR", "dB"), "ssim": ("SSIM", ""), "lpips": ("LPIPS", ""), "rmse": ("RMSE", "")}
UNDEFENDED = "none"
SHARES = (0.9, 1.0)
"""The range of the axis of shares and cosines, so that a thousandth does not look like much."""
Series = dict[str, list[tuple[float, float]]]


@dataclass(frozen=True)
class Curve:
    """Values at equal distances along an axis from 0 to `last`; a record stores it in `extra.curves`."""

    title: str
    axis: str
    last: float
    values: Sequence[float]


@dataclass(frozen=True)
class LogPlot:
    """Points on logarithmic axes, by the name of their line; a record stores it in `extra.lines`."""

    title: str
    axis: str
    points: Mapping[str, Sequence[tuple[float, float]]]


@dataclass(frozen=True)
class Chart:
    """A drawing with its caption."""

    title: str
    svg: Markup
    note: str = ""


def charts_of(of: Table, cells: Sequence[Cell], records: Mapping[str, Record]) -> list[Chart]:
    """Return all charts of a table: over its rows, along the training, and of the first case of each cell."""
    charts = []
    for measure, (name, unit) in DRAWN.items():
        if of.drawn_over and measure in of.measures:
            axis = of.drawn_over["title"]
            for panel, members in _panels(cells, of.drawn_over.get("panels", ())).items():
                series = _over_rows(of, members, records, measure)
                charts += _chart(f"{name} over {axis}", series, axis, unit or name, panel)
    for measure, axis in of.drawn_along.items():
        if measure in of.measures:
            title = of.measures[measure].title
            for panel, members in _panels(cells, tuple(of.columns)).items():
                series = {cell.title: _along_training(cell, records, f"{measure}_") for cell in members}
                charts += _chart(f"{title} by {axis}", series, axis, title, panel)
    for cell in cells:
        charts += _case_charts(describe_setting(of, cell), records.get(cell.cases[0].key))
    return charts


def describe_setting(of: Table, cell: Cell) -> str:
    """Return the setting of a cell with the headings of its columns."""
    return join_setting(of, [setting_text(cell.row.setting[field]) for field in of.columns])


def join_setting(of: Table, values: Sequence[str]) -> str:
    """Join the fields of a setting, each after its heading; a data set needs none."""
    headed = zip(of.columns.items(), values, strict=True)
    return ", ".join(value if field == "dataset" else f"{title}\u00a0{value}" for (field, title), value in headed)


def _chart(heading: str, series: Series, x_title: str, y_title: str, note: str) -> list[Chart]:
    """Return one chart of the series that have points; none without any."""
    drawn = {name: points for name, points in series.items() if points}
    return [Chart(heading, trade_off(heading, drawn, x_title, y_title), note)] if drawn else []


def _case_charts(setting: str, record: Record | None) -> list[Chart]:
    """Return what a probe measured along an axis, or over one quantity, in one case."""
    extra: Mapping[str, Any] = {} if record is None else record.extra
    charts = []
    for curve in (Curve(**fields) for fields in extra.get("curves", [])):
        charts.append(
            Chart(curve.title, line_chart(curve.title, curve.values, curve.last, curve.axis, SHARES), setting)
        )
    for plot in (LogPlot(**fields) for fields in extra.get("lines", [])):
        svg = trade_off(plot.title, plot.points, plot.axis, plot.title, log=True)
        charts.append(Chart(f"{plot.title} over {plot.axis}", svg, setting))
    return charts


def _along_training(cell: Cell, records: Mapping[str, Record], prefix: str) -> list[tuple[float, float]]:
    """Return the means over runs by the number that ends a measure's name, such as the rounds of `accuracy_10`."""
    names = {name for case in cell.cases if case.key in records for name in measures_of(records[case.key])}
    numbers = sorted(int(name.removeprefix(prefix)) for name in names if re.fullmatch(prefix + r"\d+", name))
    return [(float(n), statistics.fmean(values_by_client(cell, records, f"{prefix}{n}"))) for n in numbers]


def _panels(cells: Sequence[Cell], fields: Sequence[str]) -> dict[str, list[Cell]]:
    """Group the cells that one chart shows by what they have in common."""
    panels: dict[str, list[Cell]] = {}
    for cell in cells:
        panels.setdefault(", ".join(setting_text(cell.row.setting[field]) for field in fields), []).append(cell)
    return panels


def _over_rows(of: Table, cells: Sequence[Cell], records: Mapping[str, Record], measure: str) -> Series:
    """Return a line for each method and setting of the other fields, through the means of its rows."""
    means = [(cell, statistics.fmean(values)) for cell in cells if (values := values_by_client(cell, records, measure))]
    points: dict[tuple[str, ...], list[tuple[float, float]]] = {}
    for cell, mean in means:
        x = _x_of(of, cell.row)
        if x is not None:
            for label in _line_labels(of, cell, [other for other, _ in means]):
                points.setdefault(label, []).append((x, mean))
    series = {label: points[parts] for parts, label in zip(points, _distinct(list(points)), strict=True)}
    return series | _best_guess(of, cells, records) if series and measure == "rmse" else series


def _best_guess(of: Table, cells: Sequence[Cell], records: Mapping[str, Record]) -> Series:
    """Return what the best guess reaches without a message; an attack should be below it."""
    guesses: dict[float, list[float]] = {}
    for cell in cells:
        if (x := _x_of(of, cell.row)) is not None:
            guesses.setdefault(x, []).extend(values_by_client(cell, records, "guess"))
    points = [(x, statistics.fmean(values)) for x, values in guesses.items() if values]
    return {"best blind guess": points} if points else {}


def _distinct(labels: Sequence[tuple[str, ...]]) -> list[str]:
    """Return the words in which labels of equal length differ; of a single label the last word.

    >>> _distinct([("CIFAR-10", "Soteria", "InvG"), ("CIFAR-10", "OUTPOST", "InvG")])
    ['Soteria', 'OUTPOST']
    >>> _distinct([("CIFAR-10", "Soteria", "InvG")])
    ['InvG']
    """
    columns = [i for i, column in enumerate(zip(*labels, strict=True)) if len(set(column)) > 1]
    return [", ".join(label[i] for i in columns) or label[-1] for label in labels]


def _line_labels(of: Table, cell: Cell, cells: Sequence[Cell]) -> list[tuple[str, ...]]:
    """Return the lines of a row: its own or, without a defence, those of all defences, which start there."""

    def is_defended(other: Cell) -> bool:
        same = other.method == cell.method and other.row.setting["dataset"] == cell.row.setting["dataset"]
        return same and other.row.setting.get("defence") != UNDEFENDED

    defended = [other for other in cells if is_defended(other)]
    starts_others = cell.row.setting.get("defence") == UNDEFENDED and defended
    x_fields = (of.drawn_over["x"], *of.drawn_over.get("along", ()))
    labels = (
        (*(setting_text(c.row.setting[field]) for field in of.columns if field not in x_fields), c.title)
        for c in (defended if starts_others else [cell])
    )
    return list(dict.fromkeys(labels))  # the end is cut off first


def _x_of(of: Table, row: Row) -> float | None:
    """Return where a row is on the axis; None for an average over the axis itself."""
    value = row.setting[of.drawn_over["x"]]
    if isinstance(value, list):
        return None
    if str(value) in (positions := of.drawn_over.get("places", {})):
        return float(positions[str(value)])
    x = float(str(value))
    return math.log10(x) if of.drawn_over.get("log") else x
