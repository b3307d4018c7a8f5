"""LPIPS, PSNR, SSIM and RMSE drawn over the field of the setting that changes from row to row."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Mapping, Sequence

from fedglass.report.charts import trade_off
from fedglass.reproduce.cases import Cell
from fedglass.reproduce.compare import Chart, by_client, measures_of, shown
from fedglass.reproduce.tables import Table
from fedglass.verdict.records import Record

DRAWN = {"psnr": ("PSNR", "dB"), "ssim": ("SSIM", ""), "lpips": ("LPIPS", ""), "rmse": ("RMSE", "")}
UNDEFENDED = "none"
Points = dict[str, list[tuple[float, float]]]


def charts_over(of: Table, cells: Sequence[Cell], records: Mapping[str, Record]) -> list[Chart]:
    """One chart for each measure and panel, where the table says over what."""
    if not of.drawn_over:
        return []
    title, found = of.drawn_over["title"], []
    for measure, (name, unit) in DRAWN.items():
        for panel, own in _panels(of, cells).items() if measure in of.measures else ():
            if series := _series(of, own, records, measure):
                series |= _guessed(of, own, records) if measure == "rmse" else {}
                heading = f"{name} over {title}"
                found.append(Chart(heading, trade_off(heading, series, title, unit or name), panel))
    return found


def charts_along(of: Table, cells: Sequence[Cell], records: Mapping[str, Record]) -> list[Chart]:
    """For each row what a measure was on the way to its end, where it was taken after 10 rounds, 20 and so on."""
    found = []
    for measure, place in ((m, t) for m, t in of.drawn_along.items() if m in of.measures):
        for panel, own in _panels(of, cells, tuple(of.columns)).items():
            if series := {cell.title: points for cell in own if (points := _way(cell, records, f"{measure}_"))}:
                heading = f"{of.measures[measure].title} by {place}"
                found.append(Chart(heading, trade_off(heading, series, place, of.measures[measure].title), panel))
    return found


def _guessed(of: Table, cells: Sequence[Cell], records: Mapping[str, Record]) -> Points:
    """What the best guess reaches without a message, which an attack is to be below."""
    found: dict[float, list[float]] = {}
    for cell in cells:
        place = _place(of, cell.row.setting[of.drawn_over["x"]])
        if place is not None:
            found.setdefault(place, []).extend(by_client(cell, records, "guess"))
    points = [(place, statistics.fmean(values)) for place, values in found.items() if values]
    return {"best blind guess": points} if points else {}


def _way(cell: Cell, records: Mapping[str, Record], start: str) -> list[tuple[float, float]]:
    """The means over runs by the number that ends a measure's name."""
    known = {name for case in cell.cases if case.key in records for name in measures_of(records[case.key])}
    places = sorted(int(name.removeprefix(start)) for name in known if re.fullmatch(start + r"\d+", name))
    return [(float(place), statistics.fmean(by_client(cell, records, f"{start}{place}"))) for place in places]


def _panels(of: Table, cells: Sequence[Cell], fields: Sequence[str] | None = None) -> dict[str, list[Cell]]:
    """The cells that one chart shows, by what they have in common."""
    common = of.drawn_over.get("panels", ()) if fields is None else fields
    found: dict[str, list[Cell]] = {}
    for cell in cells:
        found.setdefault(", ".join(shown(cell.row.setting[field]) for field in common), []).append(cell)
    return found


def _series(of: Table, cells: Sequence[Cell], records: Mapping[str, Record], measure: str) -> Points:
    """A line for each method and setting of the other fields, through the means of its rows."""
    means = [(cell, statistics.fmean(values)) for cell in cells if (values := by_client(cell, records, measure))]
    found: dict[tuple[str, ...], list[tuple[float, float]]] = {}
    for cell, mean in means:
        place = _place(of, cell.row.setting[of.drawn_over["x"]])
        if place is not None:
            for label in _lines(of, cell, [other for other, _ in means]):
                found.setdefault(label, []).append((place, mean))
    return {label: found[words] for words, label in zip(found, _distinct(list(found)), strict=True)}


def _distinct(labels: Sequence[tuple[str, ...]]) -> list[str]:
    """The words in which labels of equal length differ; of a single one the last.

    >>> _distinct([("CIFAR-10", "Soteria", "InvG"), ("CIFAR-10", "OUTPOST", "InvG")])
    ['Soteria', 'OUTPOST']
    >>> _distinct([("CIFAR-10", "Soteria", "InvG")])
    ['InvG']
    """
    places = [i for i, words in enumerate(zip(*labels, strict=True)) if len(set(words)) > 1]
    return [", ".join(label[i] for i in places) or label[-1] for label in labels]


def _lines(of: Table, cell: Cell, cells: Sequence[Cell]) -> list[tuple[str, ...]]:
    """The lines that a row is on: its own, or, without a defence, the starts of those of all defences."""
    defended = [c for c in cells if _alike(c, cell) and c.row.setting.get("defence") != UNDEFENDED]
    start = cell.row.setting.get("defence") == UNDEFENDED and defended
    return list(dict.fromkeys(_label(of, c) for c in (defended if start else [cell])))


def _alike(one: Cell, other: Cell) -> bool:
    """Whether two rows are of the same method and data."""
    return one.method == other.method and one.row.setting["dataset"] == other.row.setting["dataset"]


def _label(of: Table, cell: Cell) -> tuple[str, ...]:
    along = (of.drawn_over["x"], *of.drawn_over.get("along", ()))
    others = [shown(cell.row.setting[field]) for field in of.columns if field not in along]
    return *others, cell.title  # the end is cut off first


def _place(of: Table, value: object) -> float | None:
    """Where a row stands on the axis; an average over the axis itself stands nowhere on it."""
    if isinstance(value, list):
        return None
    if str(value) in (named := of.drawn_over.get("places", {})):
        return float(named[str(value)])
    number = float(str(value))
    return math.log10(number) if of.drawn_over.get("log") else number
