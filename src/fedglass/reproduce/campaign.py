"""A campaign: the missing rows of all papers, the most telling first, run until the time is over.

`campaign.json` lists what to run in the order of its importance. Each finished run is one line of the results.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property
from importlib import resources
from pathlib import Path
from typing import Any

from fedglass import __version__
from fedglass.audit.play import was_cut_short
from fedglass.audit.target import AuditProgress, Case
from fedglass.core.errors import UsageError, unknown_name
from fedglass.execution.executor import Executor
from fedglass.reproduce.cases import Cell, TrialCase, cells, choose_methods, data_kinds, missing_weights, weights_names
from fedglass.reproduce.compare import measures_of
from fedglass.reproduce.image_sources import KINDS, populations
from fedglass.reproduce.paper import paper_of
from fedglass.reproduce.results import Place, Result, append_result, places_of, read_results
from fedglass.reproduce.run import GradientTimer, experiment_seconds, ready_to_run, time_gradient, warm_up_seconds
from fedglass.reproduce.tables import Request, Table, choose_rows, table
from fedglass.verdict.records import Record

BATCH_SECONDS = 600.0
"""Runs that are started together take about this long on each worker, so that the end of the time is noticed."""
LONG_SECONDS = 3600.0
"""A longer attack stores its state and may be begun although the time will not suffice."""


@dataclass(frozen=True)
class Entry:
    """Rows of a table that belong to a campaign, and how they are run."""

    table: str
    rows: str = ""
    """As on the command line; empty for all."""
    methods: Sequence[str] = ()
    clients: int = 3
    options: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the request that differ from the published procedure."""
    why: str = ""

    def request(self, of: Table) -> Request:
        """Return the changes to the published procedure, with the table's own where the entry has none."""
        defaults = {name: of.default[name] for name in ("images", "rounds", "side") if name in of.default}
        return Request(**{**defaults, **self.options})


def entries(only: Sequence[str] = ()) -> list[Entry]:
    """Return the entries of the campaign in the order of their importance, or those of some tables."""
    text = (resources.files("fedglass.reproduce") / "campaign.json").read_text(encoding="utf-8")
    listed = [Entry(**entry) for entry in json.loads(text)]
    for name in only:
        if name not in {entry.table for entry in listed}:
            raise unknown_name("table of the campaign", name, dict.fromkeys(entry.table for entry in listed))
    return [entry for entry in listed if not only or entry.table in only]


@dataclass(frozen=True, eq=False)
class PlannedRun:
    """One case of a campaign, with the cell that it belongs to."""

    cell: Cell
    case: TrialCase
    of: Table
    timer: GradientTimer = time_gradient

    @cached_property
    def seconds(self) -> float:
        """The estimated cost on one core; gradients of the network are timed when it is first asked for."""
        trial = self.case.subject
        return experiment_seconds(trial.experiment, self.timer) + warm_up_seconds(trial, self.timer)

    @property
    def place(self) -> Place:
        """Return what the run's line is about."""
        trial, options = self.case.subject, json.dumps(self.options, sort_keys=True)
        run = self.of.name, self.cell.row.number, self.cell.method, trial.client, trial.part, trial.seed
        return *run, options, trial.population.describe(with_place=False), __version__

    @property
    def options(self) -> dict[str, Any]:
        """Return the options that differ from a plain request; names of files stay out of the results."""
        plain = asdict(Request())
        return {n: v for n, v in asdict(self.cell.request).items() if v != plain[n] and n != "weights"}

    @property
    def command(self) -> str:
        """Return the command that repeats the run."""
        words = [f"--{n.replace('_', '-')}" + ("" if v is True else f" {v}") for n, v in self.options.items()]
        command = f"fedglass reproduce {self.of.name} --rows {self.cell.row.number} --methods {self.cell.method}"
        return " ".join([command, f"--clients {self.case.subject.client + 1}", *words])


def plan_campaign(
    chosen: Sequence[Entry],
    stand_ins: Path | None,
    data: Sequence[str],
    seed: int,
    weights: Mapping[str, str] | None = None,
) -> list[tuple[Entry, list[PlannedRun]]]:
    """Return the runs of each entry; raise an error if the images of an entry are absent.

    Methods that lack their trained network are left out.
    """
    return [(entry, _runs(entry, stand_ins, data, seed, weights or {})) for entry in chosen]


def cheapest_first(planned: Sequence[tuple[Entry, Sequence[PlannedRun]]]) -> Iterator[PlannedRun]:
    """Yield the runs of one entry after the other, the cheapest of an entry first.

    The cost of an entry is estimated when its turn comes, so that a campaign begins at once.
    """
    for _, runs in planned:
        yield from sorted(runs, key=lambda run: (run.seconds, run.case.subject.client))


def _runs(
    entry: Entry, stand_ins: Path | None, data: Sequence[str], seed: int, weights: Mapping[str, str]
) -> list[PlannedRun]:
    of = table(entry.table)
    if of.name in paper_of(of).compared:
        return []
    request = replace(entry.request(of), weights={n: weights[n] for n in weights_names(of) if n in weights})
    rows = choose_rows(of, [entry.rows] if entry.rows else [])
    settings = [part.setting for row in rows for part in row.parts()]
    methods = [
        method
        for method in choose_methods(of, entry.methods)
        if any(missing_weights(of, setting, request, method) is None for setting in settings)
    ]
    if not methods:
        return []
    kinds = data_kinds(of, rows, methods, request)
    # The user gives the data of all entries: this one uses some of them.
    given = [source for source in data if "=" not in source or source.partition("=")[0] in kinds]
    sets = populations(kinds, given, stand_ins, seed, request.own_labels)
    if absent := [KINDS[kind].title for kind, images in sets.items() if images.stand_in and images.embedded]:
        raise UsageError(
            f"The campaign has no images for {' and '.join(absent)} ({of.name}): name a folder of stand-ins with "
            "--stand-ins, or the data with --data NAME=SOURCE."
        )
    return [
        PlannedRun(cell, case, of)
        for cell in cells(of, rows, methods, entry.clients, sets, request, seed)
        for case in cell.cases
    ]


def append_computed(chosen: Iterable[Entry], folder: Path) -> int:
    """Append what is computed without a run, unless it is there; return how many lines were written."""
    places, written = places_of(read_results(folder)), 0
    for of in {entry.table: table(entry.table) for entry in chosen}.values():
        compare = paper_of(of).compared.get(of.name)
        measured = {} if compare is None else compare(of).measured
        for (row, method), metrics in measured.items():
            result = Result(
                table=of.name,
                row=row,
                method=method,
                client=None,
                seed=0,
                metrics=metrics,
                data="none, computed",
                stand_in=False,
                version=__version__,
                command=f"fedglass reproduce {of.name}",
                date=datetime.now(UTC).isoformat(timespec="seconds"),
            )
            if result.place not in places:
                append_result(folder, result)
                written += 1
    return written


def result_of(run: PlannedRun, record: Record) -> Result:
    """Return the line of one finished run."""
    trial = run.case.subject
    numbers = {name: value for name, value in measures_of(record).items() if math.isfinite(value)}
    return Result(
        table=run.of.name,
        row=run.cell.row.number,
        method=run.cell.method,
        client=trial.client,
        part=trial.part,
        seed=trial.seed,
        metrics=numbers,
        iterations=sum(trial.experiment.probe.stages()) or None,
        iterations_published=_published_iterations(run),
        options=run.options,
        data=trial.population.describe(with_place=False),
        stand_in=trial.population.stand_in,
        version=__version__,
        command=run.command,
        date=record.finished,
        seconds=round(record.seconds, 1),
        key=record.key,
    )


def _published_iterations(run: PlannedRun) -> int | None:
    """Return the iterations of the published procedure; None if the paper does not state them."""
    paper, request = paper_of(run.of), Request(side=run.cell.request.side, weights=run.cell.request.weights)
    if run.cell.method in paper.iterations:
        return paper.iterations[run.cell.method]
    if "iterations" in run.of.default and not run.of.clients:
        return None
    published = paper.tables[run.of.name].experiment(run.cell.row.parts()[0], run.cell.method, request)
    return sum(published.probe.stages()) or None


class ResultWriter(AuditProgress):
    """Callbacks of a run that append a result after every finished case, and pass everything on."""

    def __init__(self, folder: Path, progress: AuditProgress) -> None:
        self.runs = dict[str, list[PlannedRun]]()
        """Runs that were started, by the key of their case; tables may share a case."""
        self.folder, self.inner, self.written, self.failed = folder, progress, 0, 0
        self.spent = self.estimated = 0.0
        stored = read_results(folder)
        self.lines = {line.key: line for line in stored if line.key}
        self.places = places_of(stored)

    @property
    def pace(self) -> float:
        """Return how much longer the runs took than estimated."""
        return self.spent / self.estimated if self.estimated else 1.0

    def finished(self, case: Case[Any], record: Record) -> None:
        runs = self.runs[case.key]
        if record.status == "done" and not was_cut_short(record):
            for run in runs:
                self.append(run, result_of(run, record))
            self.spent, self.estimated = self.spent + record.seconds, self.estimated + runs[0].seconds
        elif record.status == "failed":
            self.failed += 1
        super().finished(case, record)

    def append(self, run: PlannedRun, result: Result) -> None:
        """Append the line of a run, unless it is there."""
        if run.place not in self.places:
            append_result(self.folder, result)
            self.lines[run.case.key] = result
            self.places.add(run.place)
            self.written += 1

    def unmeasured(self, runs: Iterable[PlannedRun]) -> Iterator[PlannedRun]:
        """Yield the runs without a result. A case that another table has measured becomes a line at once."""
        for run in runs:
            line = self.lines.get(run.case.key)
            if run.place in self.places:
                continue
            if line is not None:
                place = {"table": run.of.name, "row": run.cell.row.number, "method": run.cell.method}
                self.append(run, line.model_copy(update={**place, "options": run.options, "command": run.command}))
            elif run.case.key not in self.runs:
                yield run


def run_campaign(
    runs: Iterable[PlannedRun],
    place: Path,
    results: Path,
    executor: Executor,
    workers: int,
    hours: float,
    progress: AuditProgress,
    clock: Callable[[], float] = time.time,
) -> ResultWriter:
    """Run what has no result yet, in order, until the hours are over; return how many results were written.

    Runs that would not end in time are passed over, except long ones, which store their state and continue later.
    """
    if not hours > 0:
        raise UsageError(f"--hours must be more than 0, got {hours:g}.")
    deadline, writer = clock() + 3600 * hours, ResultWriter(results, progress)
    todo = writer.unmeasured(runs)
    with ready_to_run(place, executor) as play:
        while batch := _batch(todo, (deadline - clock()) / writer.pace, workers):
            writer.runs |= batch
            cases = [runs_of_case[0].case for runs_of_case in batch.values()]
            records = play(cases, writer, deadline)
            for case in cases:  # finished by an earlier command, so that nothing ran now
                record = records.get(case.key)
                if record is not None and record.status == "done" and case.key not in writer.lines:
                    writer.finished(case, record)
    return writer


def _batch(todo: Iterator[PlannedRun], remaining: float, workers: int) -> dict[str, list[PlannedRun]]:
    """Return the next runs that fit into the remaining seconds, by the keys of their cases.

    They take about ten minutes on each worker.
    """
    batch, seconds = dict[str, list[PlannedRun]](), 0.0
    while remaining > 0 and (len(batch) < workers or seconds < BATCH_SECONDS * workers):
        run = next(todo, None)
        if run is None:
            break
        if run.seconds <= remaining or run.seconds > LONG_SECONDS:
            seconds += 0.0 if run.case.key in batch else run.seconds
            batch.setdefault(run.case.key, []).append(run)
    return batch
