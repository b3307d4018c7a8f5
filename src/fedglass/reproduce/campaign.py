"""A campaign: the missing rows of all papers, the most telling first, run until the time is over.

`campaign.json` lists what to run in the order of its importance. Each finished run is one line of the results.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from importlib import resources
from pathlib import Path
from typing import Any

from fedglass import __version__
from fedglass.audit.cases import AuditProgress, Case
from fedglass.audit.play import was_cut_short
from fedglass.core.errors import UsageError, unknown_name
from fedglass.execution.executor import Executor
from fedglass.reproduce.cases import Cell, TrialCase, cells, choose_methods, data_kinds, missing_weights, weights_names
from fedglass.reproduce.compare import measures_of
from fedglass.reproduce.cost import experiment_seconds, iterations_of_stages, warm_up_seconds
from fedglass.reproduce.paper import Experiment, paper_of
from fedglass.reproduce.populations import KINDS, populations
from fedglass.reproduce.results import Result, append_result, read_results
from fedglass.reproduce.run import ready_to_run
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
    """One case of a campaign, with the cell that it belongs to and its estimated cost."""

    cell: Cell
    case: TrialCase
    of: Table
    seconds: float


def plan_campaign(
    chosen: Sequence[Entry],
    stand_ins: Path | None,
    data: Sequence[str],
    seed: int,
    weights: Mapping[str, str] | None = None,
) -> list[tuple[Entry, list[PlannedRun]]]:
    """Return the runs of each entry, the cheapest first; raise an error if the images of an entry are absent.

    Methods that lack their trained network are left out.
    """
    return [(entry, list(_runs(entry, stand_ins, data, seed, weights or {}))) for entry in chosen]


def _runs(
    entry: Entry, stand_ins: Path | None, data: Sequence[str], seed: int, weights: Mapping[str, str]
) -> Iterator[PlannedRun]:
    of = table(entry.table)
    request = replace(entry.request(of), weights={n: weights[n] for n in weights_names(of) if n in weights})
    rows = choose_rows(of, [entry.rows] if entry.rows else [])
    settings = [part.setting for row in rows for part in row.parts()]
    methods = [
        method
        for method in choose_methods(of, entry.methods)
        if any(missing_weights(of, setting, request, method) is None for setting in settings)
    ]
    if not methods:
        return
    kinds = data_kinds(of, rows, methods, request)
    sets = populations(kinds, _of_kinds(data, kinds), stand_ins, seed, request.own_labels)
    if absent := [KINDS[kind].title for kind, images in sets.items() if images.stand_in and images.embedded]:
        raise UsageError(
            f"The campaign has no images for {' and '.join(absent)} ({of.name}): name a folder of stand-ins with "
            "--stand-ins, or the data with --data NAME=SOURCE."
        )
    planned = [
        PlannedRun(cell, case, of, experiment_seconds(case.subject.experiment) + warm_up_seconds(case.subject))
        for cell in cells(of, rows, methods, entry.clients, sets, request, seed)
        for case in cell.cases
    ]
    yield from sorted(planned, key=lambda run: (run.seconds, run.case.subject.client))


def _of_kinds(data: Sequence[str], kinds: Sequence[str]) -> list[str]:
    """Return the data that the user gave for these kinds: an entry uses some of them."""
    return [source for source in data if "=" not in source or source.partition("=")[0] in kinds]


def result_of(run: PlannedRun, record: Record) -> Result:
    """Return the line of one finished run."""
    trial = run.case.subject
    options = _differences(run.cell.request)
    numbers = {name: value for name, value in measures_of(record).items() if math.isfinite(value)}
    words = [f"--{name.replace('_', '-')}" + ("" if value is True else f" {value}") for name, value in options.items()]
    command = f"fedglass reproduce {run.of.name} --rows {run.cell.row.number} --methods {run.cell.method}"
    return Result(
        table=run.of.name,
        row=run.cell.row.number,
        method=run.cell.method,
        client=trial.client,
        part=trial.part,
        seed=trial.seed,
        metrics=numbers,
        iterations=_iterations(trial.experiment),
        iterations_published=_published_iterations(run),
        options=options,
        data=trial.population.describe(with_place=False),
        stand_in=trial.population.stand_in,
        version=__version__,
        command=" ".join([command, f"--clients {trial.client + 1}", *words]),
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
    return _iterations(paper.tables[run.of.name].experiment(run.cell.row.parts()[0], run.cell.method, request))


def _differences(request: Request) -> dict[str, Any]:
    """Return the options that differ from a plain request; names of files stay out of the results."""
    plain = asdict(Request())
    return {n: v for n, v in asdict(request).items() if v != plain[n] and n != "weights"}


def _iterations(experiment: Experiment) -> int | None:
    stages = iterations_of_stages(experiment.probe.attack)
    return sum(stages) if stages else getattr(experiment.probe, "iterations", None)


class ResultWriter:
    """Callbacks of a run that append a result after every finished case, and pass everything on."""

    def __init__(self, runs: Sequence[PlannedRun], folder: Path, progress: AuditProgress) -> None:
        self.runs = {run.case.key: run for run in runs}
        self.folder, self.progress, self.written, self.failed = folder, progress, 0, 0
        self.spent = self.estimated = 0.0

    @property
    def pace(self) -> float:
        """Return how much longer the runs took than estimated."""
        return self.spent / self.estimated if self.estimated else 1.0

    def planned(self, cases: int, done: int) -> None:
        self.progress.planned(cases, done)

    def trained(self, name: str, done: int, total: int) -> None:
        self.progress.trained(name, done, total)

    def started(self, case: Case[Any]) -> None:
        self.progress.started(case)

    def moved(self, case: Case[Any], done: int, total: int) -> None:
        self.progress.moved(case, done, total)

    def finished(self, case: Case[Any], record: Record) -> None:
        run = self.runs[case.key]
        if record.status == "done" and not was_cut_short(record):
            append_result(self.folder, result_of(run, record))
            self.written += 1
            self.spent, self.estimated = self.spent + record.seconds, self.estimated + run.seconds
        elif record.status == "failed":
            self.failed += 1
        self.progress.finished(case, record)


def run_campaign(
    runs: Sequence[PlannedRun],
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
    deadline, writer = clock() + 3600 * hours, ResultWriter(runs, results, progress)
    done = read_results(results).keys()
    todo = list({run.case.key: run for run in runs if run.case.key not in done}.values())
    with ready_to_run(place, executor) as play:
        while batch := _batch(todo, (deadline - clock()) / writer.pace, workers):
            todo = [run for run in todo if run not in batch]
            records = play([run.case for run in batch], writer, deadline)
            stored = read_results(results).keys()
            for run in batch:  # finished by an earlier command, so that nothing ran now
                record = records.get(run.case.key)
                if record is not None and record.status == "done" and run.case.key not in stored:
                    writer.finished(run.case, record)
    return writer


def _batch(todo: Sequence[PlannedRun], remaining: float, workers: int) -> list[PlannedRun]:
    """Return the next runs that fit into the remaining seconds, as many as take about ten minutes on each worker."""
    batch, seconds = list[PlannedRun](), 0.0
    for run in todo:
        if remaining > 0 and (run.seconds <= remaining or run.seconds > LONG_SECONDS):
            batch.append(run)
            seconds += run.seconds
            if len(batch) >= workers and seconds >= BATCH_SECONDS * workers:
                break
    return batch
