"""Run what a re-creation still lacks: warm-ups first, the rest is the audit's engine."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedglass.audit.engine import play_unfinished
from fedglass.audit.executors.executor import Executor
from fedglass.audit.machine import device_named
from fedglass.audit.play import Work
from fedglass.audit.progress import Progress
from fedglass.ledger.lock import alone
from fedglass.ledger.records import RECORDS, Record, RecordFile
from fedglass.reproduce.cases import Cell, TrialCase, cases_of
from fedglass.reproduce.messages import Message, TrainedNetwork, members
from fedglass.reproduce.warm_ups import network_file, trained_network


def run(cells: Sequence[Cell], directory: Path, executor: Executor, progress: Progress) -> dict[str, Record]:
    """Run the unfinished cases; the records of all of them by key. Failed ones are tried again.

    One command at a time in a directory: two would run the same cases and train the same networks twice.
    """
    cases = cases_of(cells)
    keys = {case.key for case in cases}

    def prepared(todo: Sequence[TrialCase]) -> list[Work]:
        networks: dict[Path, TrainedNetwork] = {}
        return [_work(case, directory, networks, progress) for case in todo]

    with alone(directory):
        play_unfinished(cases, directory, executor, prepared, progress)
    return {record.key: record for record in RecordFile(directory / RECORDS).read() if record.key in keys}


def _work(case: TrialCase, directory: Path, networks: dict[Path, TrainedNetwork], progress: Progress) -> Work:
    """All that a worker needs; the network is trained here, where the cases share it."""
    trial, experiment = case.subject, case.subject.experiment
    setup, path = experiment.setup, network_file(trial, directory)

    def trained(done: int, total: int) -> None:
        progress.trained(f"{setup.network} for {total} rounds", done, total)

    if path is not None and path not in networks:
        networks[path] = trained_network(trial, path, trained)
    clients = members(setup, trial.population, trial.client)
    message = Message(experiment, clients, trial.seed, None if path is None else networks[path])
    return Work(case, message, device_named("auto" if experiment.probe.accelerated else "cpu"))
