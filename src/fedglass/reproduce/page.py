"""The page of a re-creation: the table, what it was made from, charts and pictures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedglass.audit.cost import duration
from fedglass.report.page import Album, InlinePicture, PageTable, TableCell, render, write_page
from fedglass.reproduce.cases import Cell
from fedglass.reproduce.charts import charts_of, describe_setting, join_setting
from fedglass.reproduce.compare import (
    ComparedCell,
    compare_cells,
    describe_data,
    describe_spread,
    measures_of,
    remarks,
    strips_of,
)
from fedglass.reproduce.tables import Figure, Table
from fedglass.verdict.records import Record


@dataclass(frozen=True)
class PictureStrip:
    """A line of pictures with its title."""

    title: str
    note: str
    picture: InlinePicture


@dataclass(frozen=True)
class PictureGroup:
    """The pictures of one client in one row of the table, one strip below the other."""

    title: str
    strips: Sequence[PictureStrip]
    epochs: Sequence[PictureStrip] = ()
    """The same images at each local epoch, before they were matched and averaged."""


def write_recreation(
    directory: Path, figure: Figure, of: Table, cells: Sequence[Cell], records: Mapping[str, Record], command: str
) -> Path:
    """Write the page next to the records, under the table's name."""
    album = Album(directory)
    compared = compare_cells(of, cells, records)
    cases = [case for cell in cells for case in cell.cases]
    columns = ["setting", "method", *(measure.title for measure in of.measures.values()), "runs", "time", "memory"]
    probes = dict.fromkeys((cell.title, repr(cell.experiment.probe)) for cell in cells)
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
        groups=[group for row in _by_row(cells) for group in _groups(of, row, records, album)],
        failures=[(case.title, r.error) for case in cases if (r := records.get(case.key)) and r.status == "failed"],
        attacks=PageTable(["method", "exactly as run"], [list(pair) for pair in probes]),
        command=command,
    )
    return write_page(directory / f"{figure.name}.html", html)


def _table_row(of: Table, row: ComparedCell) -> list[TableCell | str]:
    numbers = [TableCell(unbroken(row.measured[m]), note=unbroken(f"paper {row.published[m]}")) for m in of.measures]
    runs = f"{row.done} of {row.planned}" + (f", {row.failed} failed" if row.failed else "")
    time = "-" if row.seconds is None else unbroken(duration(row.seconds))
    memory = "-" if row.peak_mib is None else unbroken(f"{row.peak_mib:.0f} MiB")
    return [join_setting(of, row.setting), row.method, *numbers, runs, time, memory]


def unbroken(text: str) -> str:
    """Return the text with spaces at which no line ends.

    >>> unbroken("1 ± 2")
    '1\\xa0±\\xa02'
    """
    return text.replace(" ", "\u00a0")


def _by_row(cells: Sequence[Cell]) -> list[list[Cell]]:
    """Group cells that share their originals: the methods of one row on the same data."""
    rows: dict[tuple[int, str], list[Cell]] = {}
    for cell in cells:
        rows.setdefault((cell.row.number, cell.experiment.setup.data), []).append(cell)
    return list(rows.values())


def _groups(of: Table, cells: Sequence[Cell], records: Mapping[str, Record], album: Album) -> list[PictureGroup]:
    """Return one group for each client, with all methods below its originals."""
    groups = []
    for index, case in enumerate(cells[0].cases):
        pictured = [
            (cell, record, strips)
            for cell in cells
            if (record := records.get(cell.cases[index].key)) is not None and (strips := strips_of(record))
        ]
        if pictured:
            original = PictureStrip("original", "", album.inline(str(pictured[0][2]["original"]), "originals"))
            reconstructed = [_strip(*entry, album) for entry in pictured]
            # The epochs of one client only: they are many.
            epochs = [e for cell, _, strips in pictured for e in _epochs(cell, strips, album)] if index == 0 else []
            part = f" ({case.subject.part})" if case.subject.part else ""
            title = f"{describe_setting(of, cells[0])}: client {case.subject.client}{part}"
            groups.append(PictureGroup(title, [original, *reconstructed], epochs))
    return groups


def _strip(cell: Cell, record: Record, strips: Mapping[str, Any], album: Album) -> PictureStrip:
    measures = measures_of(record)
    notes = [f"{measures['psnr']:.1f} dB"]
    notes += [f"{measures['recovered']:.0f} % recovered"] if "recovered" in measures else []
    notes += [f"{name.upper()} {measures[name]:.3f}" for name in ("ssim", "lpips") if name in measures]
    return PictureStrip(cell.title, ", ".join(notes), album.inline(str(strips["reconstruction"]), cell.title))


def _epochs(cell: Cell, strips: Mapping[str, Any], album: Album) -> list[PictureStrip]:
    titled = ((f"{cell.title}, epoch {i}", path) for i, path in enumerate(strips.get("epochs", []), 1))
    return [PictureStrip(title, "", album.inline(str(path), title)) for title, path in titled]
