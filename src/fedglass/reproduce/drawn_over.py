"""LPIPS, PSNR and SSIM drawn over the field of the setting that changes from row to row."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

from fedglass.ledger.records import Record
from fedglass.report.charts import trade_off
from fedglass.reproduce.cases import Cell
from fedglass.reproduce.compare import by_client, shown
from fedglass.reproduce.curves import Chart
from fedglass.reproduce.tables import Table

DRAWN = {"psnr": ("PSNR", "dB"), "ssim": ("SSIM", ""), "lpips": ("LPIPS", "")}
UNDEFENDED = "none"
Points = dict[str, list[tuple[float, float]]]


def charts_over(of: Table, cells: Sequence[Cell], records: Mapping[str, Record]) -> list[Chart]:
    """One chart for each measure, where the table says over what."""
    if not of.drawn_over:
        return []
    title, found = of.drawn_over["title"], []
    for measure, (name, unit) in DRAWN.items():
        series = _series(of, cells, records, measure) if measure in of.measures else {}
        if series:
            heading = f"{name} over {title}"
            found.append(Chart(heading, trade_off(heading, series, title, unit or name)))
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
