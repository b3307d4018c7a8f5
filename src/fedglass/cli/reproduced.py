"""The output of a re-creation: its cost before the run, each run in a phrase, and the table at the end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table as Grid
from rich.text import Text

from fedglass.audit.cost import duration
from fedglass.audit.play import unfinished_cases
from fedglass.cli.options import Output
from fedglass.cli.reproduce import of_printed
from fedglass.reproduce.campaign import Entry, PlannedRun
from fedglass.reproduce.cases import Cell, cases_of
from fedglass.reproduce.compare import ComparedCell, describe_data, describe_spread, measures_of, remarks
from fedglass.reproduce.results import Place, Result, places_of
from fedglass.reproduce.run import cases_without_network, describe_cost, experiment_seconds
from fedglass.reproduce.tables import Figure, Table
from fedglass.verdict.directory import RECORDS
from fedglass.verdict.records import Record


def say_before(
    chosen: Figure, cells: Sequence[Cell], directory: Path, workers: int, absent: Sequence[str] = ()
) -> None:
    """Print what will run, on which data, and how long it will take, on stderr."""
    console = Console(stderr=True, highlight=False)
    todo = unfinished_cases(cases_of(cells), directory)
    console.print(Text(f"{chosen.name}: {chosen.title}", style="bold"), soft_wrap=True)
    for text, stand_in in describe_data(cells).items():
        console.print(Text(text, style="yellow" if stand_in else ""), soft_wrap=True)
    for text in absent:
        console.print(Text(text, style="yellow"), soft_wrap=True)
    console.print(Text(describe_cost(todo, workers, cases_without_network(todo, directory))), soft_wrap=True)


def say_plan(of: Table, cells: Sequence[Cell], directory: Path) -> None:
    """Print what a dry run shows instead of the table: finished runs, reductions and averages, on stderr."""
    console = Console(stderr=True, highlight=False)
    total, todo = len({case.key for case in cases_of(cells)}), len(unfinished_cases(cases_of(cells), directory))
    if total > todo:
        console.print(Text(f"{total - todo} of {total} runs are already done.", style="dim"), soft_wrap=True)
    for text in remarks(of, cells, {}):
        console.print(Text(text, style="dim"), soft_wrap=True)


def say_table(
    of: Table, cells: Sequence[Cell], measured: Sequence[ComparedCell], records: Mapping[str, Record]
) -> None:
    """Print paper and measurement side by side, on stdout."""
    console = Console(highlight=False)
    wide = Console(highlight=False, width=max(console.width, 60 + 14 * len(of.columns) + 30 * len(of.measures)))
    out = console if console.is_terminal else wide
    out.print(Text(f"{of.name}: {of.title}", style="bold"), soft_wrap=True)
    for text in describe_data(cells):
        out.print(Text(text), soft_wrap=True)
    heads = [f"{m.title}\n{source}" for m in of.measures.values() for source in ("paper", "measured")]
    grid = Grid(*of.columns.values(), "method", *heads, "runs", "time\nof one", "peak\nMiB")
    for line in measured:
        numbers = [Text(t) for name in of.measures for t in (line.published[name], line.measured[name])]
        runs = f"{line.done}/{line.planned}" + (f" ({line.failed} failed)" if line.failed else "")
        time = "-" if line.seconds is None else duration(line.seconds)
        memory = "-" if line.peak_mib is None else f"{line.peak_mib:.0f}"
        grid.add_row(*line.setting, line.method, *numbers, runs, time, memory)
    out.print(grid)
    paper = f" Paper: {of.clients} clients." if of.clients else ""
    out.print(Text(f"Measured: mean {describe_spread(of, cells)}.{paper}"), soft_wrap=True)
    for note in remarks(of, cells, records):
        out.print(Text(note, style="dim"), soft_wrap=True)


def answer_of_plan(
    chosen: Figure, of: Table, cells: Sequence[Cell], directory: Path, workers: int, absent: Sequence[str]
) -> dict[str, Any]:
    """Return the JSON answer of a dry run."""
    total, todo = len({case.key for case in cases_of(cells)}), unfinished_cases(cases_of(cells), directory)
    return {
        **_header(chosen, of, cells),
        "runs": {"planned": total, "done": total - len(todo)},
        "seconds_on_one_core": round(sum(experiment_seconds(case.subject.experiment) for case in todo), 1),
        "workers": workers,
        "remarks": [*absent, *remarks(of, cells, {})],
    }


def answer_of(
    chosen: Figure,
    of: Table,
    cells: Sequence[Cell],
    measured: Sequence[ComparedCell],
    records: Mapping[str, Record],
    directory: Path,
    page: Path,
) -> dict[str, Any]:
    """Return the JSON answer of a re-creation."""
    failed = sum(line.failed for line in measured)
    rows = [_row(of, cell, line) for cell, line in zip(cells, measured, strict=True)]
    paths = {"directory": str(directory), "records": str(directory / RECORDS), "page": str(page)}
    texts = {"spread": describe_spread(of, cells), "remarks": list(remarks(of, cells, records)), "paths": paths}
    return {**_header(chosen, of, cells), "exit_code": 3 if failed else 0, "rows": rows, **texts}


def _header(chosen: Figure, of: Table, cells: Sequence[Cell]) -> dict[str, Any]:
    names = {"name": chosen.name, "title": chosen.title, "table": of.name, "source": of.source}
    return {**names, "paper_clients": of.clients, "data": list(describe_data(cells))}


def _row(of: Table, cell: Cell, line: ComparedCell) -> dict[str, Any]:
    return {
        "row": cell.row.number,
        "setting": dict(cell.row.setting),
        "method": cell.method,
        "title": line.method,
        "paper": {name: of_printed(line.values_published.get(name)) for name in of.measures},
        "measured": {name: of_printed(line.values.get(name)) for name in of.measures},
        "runs": {"planned": line.planned, "done": line.done, "failed": line.failed},
        "seconds": line.seconds,
        "peak_mib": line.peak_mib,
    }


def measures_in_words(record: Record) -> str:
    """Describe the measurements of one record in a phrase."""
    if record.status == "failed":
        return f"failed ({record.error})"
    values = measures_of(record)
    names = ("accuracy", "psnr", "recovered", "ssim", "lsim", "label_errors", "rate", "images", "found")
    texts = [f"{name} {values[name]:.3g}" for name in names if name in values]
    shares = ("lpips", "min_share", "cosine_before", "cosine_best", "expectation", "distance", "constant")
    texts += [f"{name} {values[name]:.3f}" for name in shares if name in values]
    return ", ".join([*texts, f"{record.seconds:.0f} s"])


def say_campaign(planned: Sequence[tuple[Entry, list[PlannedRun]]], stored: Sequence[Result], output: Output) -> None:
    """Print the entries of a campaign in order, with the runs that are left and their cost on one core."""
    grid, done = Grid("", "table", "rows", "methods", "runs left", "on one core", "why"), places_of(stored)
    for number, (entry, runs) in enumerate(planned, 1):
        remaining = [run for run in runs if run.place not in done]
        cost = duration(sum(run.seconds for run in remaining)) if remaining else "-"
        methods = ", ".join(dict.fromkeys(run.cell.method for run in runs))
        grid.add_row(
            str(number), entry.table, entry.rows or "all", methods, f"{len(remaining)}/{len(runs)}", cost, entry.why
        )
    if output.in_words:
        console = Console(highlight=False)
        (console if console.is_terminal else Console(highlight=False, width=200)).print(grid)
    answer = answer_of_campaign(planned, 0, 0, count_remaining(planned, done))
    for listed, (_, runs) in zip(answer["entries"], planned, strict=True):
        listed["seconds_on_one_core"] = round(sum(run.seconds for run in runs), 1)
    output.answer(answer)


def count_remaining(planned: Sequence[tuple[Entry, list[PlannedRun]]], done: set[Place]) -> int:
    """Return the number of runs of a campaign that have no result yet."""
    return len({run.place for _, runs in planned for run in runs} - done)


def answer_of_campaign(
    planned: Sequence[tuple[Entry, list[PlannedRun]]], written: int, failed: int, remaining: int
) -> dict[str, Any]:
    """Return the JSON answer of a campaign."""
    listed = [
        {
            "table": entry.table,
            "rows": entry.rows,
            "methods": list(dict.fromkeys(run.cell.method for run in runs)),
            "runs": len(runs),
        }
        for entry, runs in planned
    ]
    return {"entries": listed, "written": written, "failed": failed, "left": remaining}
