"""The page of a re-creation: the table, what it was made from, and the pictures."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedglass.report.charts import line_chart, trade_off
from fedglass.report.page import Album, InlinePicture, render, write_page
from fedglass.report.page import Cell as TableCell
from fedglass.report.page import Table as PageTable
from fedglass.reproduce.cases import Cell, Trial, TrialCase
from fedglass.reproduce.charts import charts_along, charts_over
from fedglass.reproduce.compare import (
    Chart,
    Line,
    curves_of,
    is_done,
    lines,
    lines_of,
    measures_of,
    shown,
    spread_in_words,
    strips_of,
)
from fedglass.reproduce.cost import TIMED, Load, iterations_of_stages
from fedglass.reproduce.paper import Experiment, paper_of
from fedglass.reproduce.tables import Figure, Table
from fedglass.verdict.records import Record

# What a re-creation will cost, said before it starts.


def seconds_of(experiment: Experiment) -> float:
    """About how long one case takes on one core."""
    setup = experiment.setup
    load = Load(setup.network, setup.data, experiment.supposed or setup.training, setup.examples, setup.clients)
    # Of clients that train for many rounds all are simulated, of a message those behind it.
    trainings = 1 if setup.course is None else setup.course.rounds * setup.clients
    return trainings * load.training_seconds() + experiment.probe.seconds(load)


def training_seconds(trial: Trial) -> float:
    """About how long the trial's network is trained before, on one core."""
    setup, population = trial.experiment.setup, trial.population
    warm_up = setup.warm_up
    if warm_up is None:
        return 0.0
    examples = warm_up.examples or len(population.dataset()) // (population.writers() or 1)
    each = Load(setup.network, setup.data, warm_up.training, examples).training_seconds()
    return warm_up.rounds * warm_up.called * each


def in_words(cases: Iterable[TrialCase], workers: int, untrained: Iterable[TrialCase] = ()) -> str:
    """The whole cost in one sentence, or that nothing is left to do."""
    costs = [seconds_of(case.subject.experiment) for case in cases]
    if not costs:
        return "Nothing is left to run."
    each = (
        f"about {duration(costs[0])}"
        if max(costs) < 1.5 * min(costs)
        else f"{duration(min(costs))} to {duration(max(costs))}"
    )
    running = min(workers, len(costs))
    wall = max(sum(costs) / running, max(costs))
    plural = "" if len(costs) == 1 else "s"
    training = max((training_seconds(case.subject) for case in untrained), default=0.0)
    before = f", after about {duration(training)} of training the network" if training else ""
    return (
        f"{len(costs)} run{plural}, {each} each on one core, about {duration(wall)} in all with {running} "
        f"worker{'' if running == 1 else 's'} (estimated from {TIMED} timed steps){before}."
    )


def duration(seconds: float) -> str:
    """A length of time in one unit.

    >>> duration(0.4), duration(90), duration(5000), duration(200000)
    ('1 s', '90 s', '83 min', '56 h')
    """
    if seconds < 120:
        return f"{max(1, round(seconds))} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"


# What the reader must know beside the numbers: what was reduced, averaged and trained.


def remarks(of: Table, cells: Sequence[Cell], records: Mapping[str, Record]) -> list[str]:
    """What the reader must know beside the numbers; without any records, of what is planned."""
    own = paper_of(of).remarks
    told = _iterations(cells) if own is None else own(of, cells)
    return [*told, *_averaged(cells, records), *_accuracies(cells, records), *of.notes]


def _accuracies(cells: Sequence[Cell], records: Mapping[str, Record]) -> list[str]:
    """How far the networks were trained, without which later rounds can not be compared."""
    found: dict[int, float] = {}
    for cell in cells:
        for case in cell.cases:
            value = records[case.key].utility.get("accuracy") if case.key in records else None
            if value is not None and cell.experiment.setup.warm_up is not None:
                found[cell.experiment.setup.warm_up.rounds] = value
    if not found:
        return []
    told = ", ".join(f"{value:.0%} after {rounds}" for rounds, value in sorted(found.items()))
    stand_in = any(case.subject.population.stand_in for cell in cells for case in cell.cases)
    pace = " A stand-in is learnt at another pace than the paper's data: do not compare these rows by round."
    return [f"Accuracy of the trained network here, by rounds: {told}.{pace if stand_in else ''}"]


def _iterations(cells: Sequence[Cell]) -> list[str]:
    """What was made of --iterations: a recipe gives them to its main stage, others keep their own."""
    asked: dict[int, dict[str, str]] = {}
    for cell in cells:
        stages, iterations = iterations_of_stages(cell.experiment.probe.attack), cell.request.iterations
        if iterations is not None and stages:
            told = asked.setdefault(iterations, {})
            if len(stages) > 1:
                told[cell.title] = " + ".join(map(str, stages))
    return [
        f"Not as published: the option `iterations` of every attack was {number}."
        + "".join(f" Stages of {name}: {each} iterations, of which the option sets one." for name, each in m.items())
        for number, m in sorted(asked.items())
    ]


def _averaged(cells: Sequence[Cell], records: Mapping[str, Record]) -> list[str]:
    """What the averages are made of: not of parts whose network was not given, or whose runs failed."""
    found: dict[tuple[str, ...], list[str]] = {}
    for cell in cells:
        cases = [case for case in cell.cases if not records or is_done(case, records)]
        parts = tuple(dict.fromkeys(case.subject.part for case in cases if case.subject.part))
        if parts:
            found.setdefault(parts, []).append(f"row {cell.row.number}, {cell.title}")
    where = (f" ({'; '.join(told)})" if len(found) > 1 else "" for told in found.values())
    return [f"Averages here are over: {'; '.join(parts)}{place}." for parts, place in zip(found, where, strict=True)]


SHARES = (0.9, 1.0)
"""What the axis of shares and cosines covers, so that a thousandth does not look like much."""


@dataclass(frozen=True)
class Strip:
    """A line of pictures and what it is."""

    title: str
    note: str
    picture: InlinePicture


@dataclass(frozen=True)
class Group:
    """The pictures of one client in one row of the table, laid under each other."""

    title: str
    strips: Sequence[Strip]
    epochs: Sequence[Strip] = ()
    """The same images at each local epoch, before they were matched and averaged."""


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
        stand_in=any(case.subject.population.stand_in for cell in cells for case in cell.cases),
        progress=f"{sum(line.done for line in found)} of {sum(line.planned for line in found)} runs are done.",
        spread=spread_in_words(of, cells),
        clients=of.clients,
        table=_table(of, found),
        notes=remarks(of, cells, records),
        charts=_charts(of, cells, records),
        averaged=bool(of.drawn_over or of.drawn_along),
        groups=[group for row in _by_row(cells) for group in _groups(of, row, records, album)],
        failures=[(case.title, r.error) for case, r in _failed(cells, records)],
        attacks=PageTable(["method", "exactly as run"], _reprs(cells)),
        command=command,
    )
    return write_page(directory / f"{figure.name}.html", html)


def data_in_words(cells: Sequence[Cell]) -> list[str]:
    """What the clients' images were, each once."""
    found = dict.fromkeys(case.subject.population for cell in cells for case in cell.cases)
    return list(dict.fromkeys(population.words() for population in found))


def _table(of: Table, found: Sequence[Line]) -> PageTable:
    columns = ["setting", "method", *(measure.title for measure in of.measures.values()), "runs", "time", "memory"]
    return PageTable(columns, [_cells(of, line) for line in found])


def _cells(of: Table, line: Line) -> list[TableCell | str]:
    numbers = [TableCell(unbroken(line.measured[m]), note=unbroken(f"paper {line.published[m]}")) for m in of.measures]
    clients = f"{line.done} of {line.planned}" + (f", {line.failed} failed" if line.failed else "")
    time = "-" if line.seconds is None else unbroken(duration(line.seconds))
    memory = "-" if line.peak_mib is None else unbroken(f"{line.peak_mib:.0f} MiB")
    return [_in_words(of, line.setting), line.method, *numbers, clients, time, memory]


def unbroken(text: str) -> str:
    """The text with spaces at which no line ends.

    >>> unbroken("1 ± 2")
    '1\\xa0±\\xa02'
    """
    return text.replace(" ", "\u00a0")


def _in_words(of: Table, values: Sequence[str]) -> str:
    named = zip(of.columns.items(), values, strict=True)
    return ", ".join(value if field == "dataset" else f"{title}\u00a0{value}" for (field, title), value in named)


def _setting(of: Table, cell: Cell) -> str:
    return _in_words(of, [shown(cell.row.setting[field]) for field in of.columns])


def _by_row(cells: Sequence[Cell]) -> list[list[Cell]]:
    """Cells that share their originals: the methods of one row on the same data."""
    rows: dict[tuple[int, str], list[Cell]] = {}
    for cell in cells:
        rows.setdefault((cell.row.number, cell.experiment.setup.data), []).append(cell)
    return list(rows.values())


def _groups(of: Table, cells: Sequence[Cell], records: Mapping[str, Record], album: Album) -> list[Group]:
    """One group for each client; all methods are shown below its originals."""
    found = []
    for number, case in enumerate(cells[0].cases):
        known = [(cell, record) for cell in cells if (record := records.get(cell.cases[number].key)) is not None]
        shown = [(cell, record, strips) for cell, record in known if (strips := strips_of(record))]
        if shown:
            original = Strip("original", "", album.inline(str(shown[0][2]["original"]), "originals"))
            made = [
                _strip(cell, record, album.inline(str(s["reconstruction"]), cell.title)) for cell, record, s in shown
            ]
            # Of one client only: they are many.
            epochs = [e for cell, _, s in shown for e in _epochs(cell, s, album)] if number == 0 else []
            part = f" ({case.subject.part})" if case.subject.part else ""
            title = f"{_setting(of, cells[0])}: client {case.subject.client}{part}"
            found.append(Group(title, [original, *made], epochs))
    return found


def _strip(cell: Cell, record: Record, picture: InlinePicture) -> Strip:
    measures = measures_of(record)
    told = [f"{measures['psnr']:.1f} dB"]
    told += [f"{measures['recovered']:.0f} % recovered"] if "recovered" in measures else []
    told += [f"{name.upper()} {measures[name]:.3f}" for name in ("ssim", "lpips") if name in measures]
    return Strip(cell.title, ", ".join(told), picture)


def _epochs(cell: Cell, strips: Mapping[str, Any], album: Album) -> list[Strip]:
    named = ((f"{cell.title}, epoch {i}", path) for i, path in enumerate(strips.get("epochs", []), 1))
    return [Strip(title, "", album.inline(str(path), title)) for title, path in named]


def _charts(of: Table, cells: Sequence[Cell], records: Mapping[str, Record]) -> list[Chart]:
    found = [*charts_over(of, cells, records), *charts_along(of, cells, records)]
    for cell in cells:
        record = records.get(cell.cases[0].key)
        for curve in [] if record is None else curves_of(record):
            svg = line_chart(curve.title, curve.values, curve.last, curve.axis, SHARES)
            found.append(Chart(curve.title, svg, _setting(of, cell)))
        for drawn in [] if record is None else lines_of(record):
            svg = trade_off(drawn.title, drawn.points, drawn.axis, drawn.title, log=True)
            found.append(Chart(f"{drawn.title} over {drawn.axis}", svg, _setting(of, cell)))
    return found


def _failed(cells: Sequence[Cell], records: Mapping[str, Record]) -> list[tuple[TrialCase, Record]]:
    cases = [case for cell in cells for case in cell.cases]
    return [(case, records[case.key]) for case in cases if case.key in records and records[case.key].status == "failed"]


def _reprs(cells: Sequence[Cell]) -> list[list[TableCell | str]]:
    return [list(pair) for pair in dict.fromkeys((c.title, repr(c.experiment.probe)) for c in cells)]
