"""The page of a re-creation: the table, what it was made from, and the pictures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedglass.audit.records import Record
from fedglass.report.page import Cell as TableCell
from fedglass.report.page import Table as PageTable
from fedglass.report.page import render, write_page
from fedglass.report.pictures import Album, Inlined
from fedglass.reproduce.cases import Case, Cell, known_methods
from fedglass.reproduce.compare import Line, iterations_in_words, lines, measures_of, shown, spread_in_words
from fedglass.reproduce.curves import Chart, charts
from fedglass.reproduce.estimate import duration
from fedglass.reproduce.tables import Figure, Table


@dataclass(frozen=True)
class Strip:
    """A line of pictures and what it is."""

    title: str
    note: str
    picture: Inlined


@dataclass(frozen=True)
class Group:
    """The pictures of one client in one row of the table, laid under each other."""

    title: str
    strips: Sequence[Strip]


def write_recreation(
    directory: Path, figure: Figure, of: Table, cells: Sequence[Cell], records: Mapping[str, Record], command: str
) -> Path:
    """Write the page beside the records, under the table's name."""
    album = Album(directory)
    found = lines(of, cells, records)
    html = render(
        "reproduce.html",
        name=figure.name,
        title=figure.title,
        source=of.source,
        data=data_in_words(cells),
        stand_in=any(case.population.stand_in for cell in cells for case in cell.cases),
        progress=f"{sum(line.done for line in found)} of {sum(line.planned for line in found)} runs are done.",
        spread=spread_in_words(of),
        clients=of.clients,
        table=_table(of, found),
        notes=[*iterations_in_words(cells), *of.notes],
        charts=_charts(of, cells, records),
        groups=[group for row in _by_row(cells) for group in _groups(of, row, records, album)],
        failures=[(case.title, r.error) for case, r in _failed(cells, records)],
        attacks=PageTable(["method", "exactly as run"], _reprs(of, cells)),
        command=command,
    )
    return write_page(directory / f"{figure.name}.html", html)


def data_in_words(cells: Sequence[Cell]) -> list[str]:
    """What the clients' images were, each once."""
    return list(dict.fromkeys(c.cases[0].population.words(c.experiment.setup.warm_up is not None) for c in cells))


def _table(of: Table, found: Sequence[Line]) -> PageTable:
    columns = ["setting", "method"]
    columns += [f"{m.title}, {whose}" for m in of.measures.values() for whose in ("paper", "measured")]
    return PageTable([*columns, "clients", "time", "memory"], [_cells(of, line) for line in found])


def _cells(of: Table, line: Line) -> list[TableCell | str]:
    setting = ", ".join(f"{title} {value}" for title, value in zip(of.columns.values(), line.setting, strict=True))
    numbers = [text for name in of.measures for text in (line.published[name], line.measured[name])]
    clients = f"{line.done} of {line.planned}" + (f", {line.failed} failed" if line.failed else "")
    time = "-" if line.seconds is None else duration(line.seconds)
    memory = "-" if line.peak_mib is None else f"{line.peak_mib:.0f} MiB"
    return [setting, line.method, *numbers, clients, time, memory]


def _by_row(cells: Sequence[Cell]) -> list[list[Cell]]:
    rows: dict[int, list[Cell]] = {}
    for cell in cells:
        rows.setdefault(cell.row.number, []).append(cell)
    return list(rows.values())


def _groups(of: Table, cells: Sequence[Cell], records: Mapping[str, Record], album: Album) -> list[Group]:
    """One group for each client; methods of one client share its originals."""
    count = max(len(cell.cases) for cell in cells)
    setting = ", ".join(f"{title} {shown(cells[0].row.setting[field])}" for field, title in of.columns.items())
    found = []
    for client in range(count):
        strips = [s for cell in cells for s in _strips(of, cell, client, records, album)]
        unique = list({strip.title: strip for strip in strips}.values())
        if unique:
            ordered = sorted(unique, key=lambda strip: strip.title != "original")
            found.append(Group(f"{setting}: client {client}", ordered))
    return found


def _strips(of: Table, cell: Cell, client: int, records: Mapping[str, Record], album: Album) -> list[Strip]:
    record = records.get(cell.cases[client].key)
    places = None if record is None else record.extra.get("strips")
    if record is None or not isinstance(places, dict) or not places:
        return []
    method, measures = known_methods(of)[cell.method], measures_of(record)
    score = f"{measures.get('psnr', float('nan')):.1f} dB, {measures.get('recovered', 0):.0f} % recovered"
    strips = [Strip("original", "", album.inline(str(places["original"]), "originals"))]
    strips.append(Strip(method, score, album.inline(str(places["reconstruction"]), f"reconstructed by {method}")))
    epochs = places.get("epochs")
    for i, place in enumerate(epochs if isinstance(epochs, list) and client == 0 else [], 1):
        title = f"{method}, epoch {i}"
        strips.append(Strip(title, "", album.inline(str(place), title)))
    return strips


def _charts(of: Table, cells: Sequence[Cell], records: Mapping[str, Record]) -> list[Chart]:
    drawn = []
    for cell in cells:
        record = records.get(cell.cases[0].key)
        if record is not None and isinstance(curves := record.extra.get("curves"), dict) and curves:
            setting = ", ".join(f"{title} {shown(cell.row.setting[field])}" for field, title in of.columns.items())
            drawn += charts(setting, curves)
    return drawn


def _failed(cells: Sequence[Cell], records: Mapping[str, Record]) -> list[tuple[Case, Record]]:
    cases = [case for cell in cells for case in cell.cases]
    return [(case, records[case.key]) for case in cases if case.key in records and records[case.key].status == "failed"]


def _reprs(of: Table, cells: Sequence[Cell]) -> list[list[TableCell | str]]:
    titles = known_methods(of)
    return [list(pair) for pair in dict.fromkeys((titles[c.method], repr(c.experiment.probe)) for c in cells)]
