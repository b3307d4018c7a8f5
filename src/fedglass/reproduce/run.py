"""Run what a re-creation still lacks: warm-ups first, the rest is the audit's engine."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedglass.audit.crew import answers_of
from fedglass.audit.engine import play_unfinished
from fedglass.audit.executors.executor import Executor, kept
from fedglass.audit.machine import device_named
from fedglass.audit.play import Work
from fedglass.audit.progress import Progress
from fedglass.ledger.lock import alone
from fedglass.ledger.records import RECORDS, Record, RecordFile
from fedglass.reproduce.cases import Cell, TrialCase, cases_of
from fedglass.reproduce.courses import Played
from fedglass.reproduce.messages import Message, TrainedNetwork, members
from fedglass.reproduce.warm_ups import network_file, trained_network
from fedglass.rounds.client import Answers


def run(cells: Sequence[Cell], directory: Path, executor: Executor, progress: Progress) -> dict[str, Record]:
    """Run the unfinished cases; the records of all of them by key. Failed ones are tried again.

    One command at a time in a directory: two would run the same cases and train the same networks twice.
    """
    cases = cases_of(cells)
    keys = {case.key for case in cases}

    with alone(directory), kept(executor) as ready:

        def prepared(todo: Sequence[TrialCase]) -> list[Work]:
            networks = _networks(todo, directory, progress, answers_of(ready))
            return [_work(case, networks[network_file(case.subject, directory)]) for case in todo]

        play_unfinished(cases, directory, ready, prepared, progress)
    return {record.key: record for record in RecordFile(directory / RECORDS).read() if record.key in keys}


def _networks(
    cases: Sequence[TrialCase], directory: Path, progress: Progress, answers: Answers
) -> dict[Path | None, TrainedNetwork | None]:
    """By file the networks that the cases start from, which are trained before, since the cases share them."""
    found: dict[Path | None, TrainedNetwork | None] = {None: None}
    for trial in (case.subject for case in cases):
        path, network = network_file(trial, directory), trial.experiment.setup.network

        def trained(done: int, total: int, network: str = network) -> None:
            progress.trained(f"{network} for {total} rounds", done, total)

        if path not in found:
            found[path] = trained_network(trial, directory, trained, answers)
    return found


def _work(case: TrialCase, network: TrainedNetwork | None) -> Work:
    trial, experiment = case.subject, case.subject.experiment
    device = device_named("auto" if experiment.probe.accelerated else "cpu")
    if experiment.setup.course is not None:
        return Work(case, Played(experiment, trial.population, trial.client, trial.seed), device)
    clients = members(experiment.setup, trial.population, trial.client)
    message = Message(experiment, clients, trial.seed, network)
    return Work(case, message, device)
