"""The page of a re-creation: the table, what it was made from, pictures and charts.

Charts show measures over the rows of a table, along a training, and single cases.
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedglass.audit.cost import duration
from fedglass.core.text import values_by_key
from fedglass.report.charts import line_chart, trade_off
from fedglass.report.page import Album, ChartFigure, PageTable, TableCell, render, write_page
from fedglass.reproduce.cases import Cell
from fedglass.reproduce.compare import (
    ComparedCell,
    compare_cells,
    describe_data,
    describe_spread,
    measures_of,
    remarks,
    strips_of,
    values_by_client,
)
from fedglass.reproduce.tables import Figure, Row, Table, setting_text
from fedglass.verdict.records import Record, grouped

DRAWN = {"psnr": ("PSNR", "dB"), "ssim": ("SSIM", ""), "lpips": ("LPIPS", ""), "rmse": ("RMSE", "")}
UNDEFENDED = "none"
SHARES = (0.9, 1.0)
"""The range of the axis of shares and cosines, so that a thousandth does not look like much."""
Series = dict[str, list[tuple[float, float]]]


def charts_of(of: Table, cells: Sequence[Cell], records: Mapping[str, Record]) -> list[ChartFigure]:
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


def _chart(heading: str, series: Series, x_title: str, y_title: str, note: str) -> list[ChartFigure]:
    """Return one chart of the series that have points; none without any."""
    drawn = {name: points for name, points in series.items() if points}
    return [ChartFigure(heading, trade_off(heading, drawn, x_title, y_title), note)] if drawn else []


def _case_charts(setting: str, record: Record | None) -> list[ChartFigure]:
    """Return what a probe measured in one case: `curves` at equal distances along an axis, and `lines` of points."""
    extra: Mapping[str, Any] = {} if record is None else record.extra
    charts = []
    for curve in extra.get("curves", []):
        title = curve["title"]
        svg = line_chart(title, curve["values"], curve["last"], curve["axis"], SHARES)
        charts.append(ChartFigure(title, svg, setting))
    for plot in extra.get("lines", []):
        title, axis = plot["title"], plot["axis"]
        svg = trade_off(title, plot["points"], axis, title, log=True)
        charts.append(ChartFigure(f"{title} over {axis}", svg, setting))
    return charts


def _along_training(cell: Cell, records: Mapping[str, Record], prefix: str) -> list[tuple[float, float]]:
    """Return the means over runs by the number that ends a measure's name, such as the rounds of `accuracy_10`."""
    names = {name for case in cell.cases if case.key in records for name in measures_of(records[case.key])}
    numbers = sorted(int(name.removeprefix(prefix)) for name in names if re.fullmatch(prefix + r"\d+", name))
    return [(float(n), statistics.fmean(values_by_client(cell, records, f"{prefix}{n}"))) for n in numbers]


def _panels(cells: Sequence[Cell], fields: Sequence[str]) -> dict[str, list[Cell]]:
    """Group the cells that one chart shows by what they have in common."""
    return grouped(cells, lambda cell: ", ".join(setting_text(cell.row.setting[field]) for field in fields))


def _over_rows(of: Table, cells: Sequence[Cell], records: Mapping[str, Record], measure: str) -> Series:
    """Return a line for each method and setting of the other fields, through the means of its rows."""
    means = [(cell, statistics.fmean(values)) for cell in cells if (values := values_by_client(cell, records, measure))]
    points = values_by_key(
        (label, (x, mean))
        for cell, mean in means
        if (x := _x_of(of, cell.row)) is not None
        for label in _line_labels(of, cell, [other for other, _ in means])
    )
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


def write_recreation(
    directory: Path, figure: Figure, of: Table, cells: Sequence[Cell], records: Mapping[str, Record], command: str
) -> Path:
    """Write the page next to the records, under the table's name."""
    album = Album(directory)
    compared = compare_cells(of, cells, records)
    cases = [case for cell in cells for case in cell.cases]
    columns = ["setting", "method", *(measure.title for measure in of.measures.values()), "runs", "time", "memory"]
    probes = dict.fromkeys((cell.title, repr(cell.experiment.probe)) for cell in cells)
    # The methods of one row on the same data share their originals.
    by_originals = grouped(cells, lambda cell: (cell.row.number, cell.experiment.setup.data))
    html = render(
        "reproduce.html",
        name=figure.name,
        title=figure.title,
        source=of.source,
        data=describe_data(cells),
        progress=f"{sum(row.done for row in compared)} of {sum(row.planned for row in compared)} runs are done.",
        spread=describe_spread(of, cells),
        clients=of.clients,
        table=PageTable(columns, [_table_row(of, row) for row in compared]),
        notes=remarks(of, cells, records),
        charts=charts_of(of, cells, records),
        averaged=bool(of.drawn_over or of.drawn_along),
        groups=[group for row in by_originals.values() for group in _groups(of, row, records, album)],
        failures=[(case.title, r.error) for case in cases if (r := records.get(case.key)) and r.status == "failed"],
        attacks=PageTable(["method", "exactly as run"], [list(pair) for pair in probes]),
        command=command,
    )
    return write_page(directory / f"{figure.name}.html", html)


def _table_row(of: Table, row: ComparedCell) -> list[TableCell | str]:
    def unbroken(text: str) -> str:
        return text.replace(" ", "\u00a0")

    numbers = [TableCell(unbroken(row.measured[m]), note=unbroken(f"paper {row.published[m]}")) for m in of.measures]
    runs = f"{row.done} of {row.planned}" + (f", {row.failed} failed" if row.failed else "")
    time = "-" if row.seconds is None else unbroken(duration(row.seconds))
    memory = "-" if row.peak_mib is None else unbroken(f"{row.peak_mib:.0f} MiB")
    return [join_setting(of, row.setting), row.method, *numbers, runs, time, memory]


def _groups(of: Table, cells: Sequence[Cell], records: Mapping[str, Record], album: Album) -> list[dict[str, Any]]:
    """Return the pictures of each client: strips with a title, the originals first, then what each method made of them.

    `epochs` are the same images at each local epoch, before they were matched and averaged.
    """
    groups = []
    for index, case in enumerate(cells[0].cases):
        pictured = [
            (cell, record, strips)
            for cell in cells
            if (record := records.get(cell.cases[index].key)) is not None and (strips := strips_of(record))
        ]
        if pictured:
            original = _strip("original", pictured[0][2]["original"], album, "originals")
            reconstructed = [
                _strip(cell.title, strips["reconstruction"], album, note=_scores(record))
                for cell, record, strips in pictured
            ]
            # The epochs of one client only: they are many.
            epochs = [
                _strip(f"{cell.title}, epoch {i}", path, album)
                for cell, _, strips in pictured
                for i, path in enumerate(strips.get("epochs", []), 1)
                if index == 0
            ]
            part = f" ({case.subject.part})" if case.subject.part else ""
            title = f"{describe_setting(of, cells[0])}: client {case.subject.client}{part}"
            groups.append({"title": title, "strips": [original, *reconstructed], "epochs": epochs})
    return groups


def _strip(title: str, path: object, album: Album, alt: str = "", note: str = "") -> dict[str, Any]:
    return {"title": title, "note": note, "picture": album.inline(str(path), alt or title)}


def _scores(record: Record) -> str:
    measures = measures_of(record)
    notes = [f"{measures['psnr']:.1f} dB"]
    notes += [f"{measures['recovered']:.0f} % recovered"] if "recovered" in measures else []
    notes += [f"{name.upper()} {measures[name]:.3f}" for name in ("ssim", "lpips") if name in measures]
    return ", ".join(notes)
