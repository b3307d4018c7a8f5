"""Run what a re-creation still lacks, and keep every record."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from safetensors.torch import save

from fedglass.audit.executors.executor import Executor, Lost, Watch
from fedglass.audit.machine import one_thread
from fedglass.ledger.evidence import write_bytes
from fedglass.ledger.lock import alone
from fedglass.ledger.records import RECORDS, Record, RecordFile
from fedglass.reproduce.cases import Case, Cell, warm_up_key
from fedglass.reproduce.experiment import Setup
from fedglass.reproduce.messages import Checkpoint, accuracy, members, warmed_up
from fedglass.reproduce.pictures import save_pictures
from fedglass.reproduce.play import Played, Work, lost, play
from fedglass.reproduce.populations import Population

TRAINED = "trained"


class Progress(Protocol):
    """Hears of a re-creation's way."""

    def planned(self, cases: int, done: int) -> None: ...

    def trained(self, name: str, done: int, total: int) -> None: ...

    def started(self, case: Case) -> None: ...

    def moved(self, case: Case, done: int, total: int) -> None: ...

    def finished(self, case: Case, record: Record) -> None: ...


def unfinished(cells: Sequence[Cell], directory: Path) -> list[Case]:
    """The cases without a finished record, each once, client by client so that every cell soon has a number."""
    done = RecordFile(directory / RECORDS).keys_done()
    every = sorted((case for cell in cells for case in cell.cases), key=lambda case: case.client)
    return list({case.key: case for case in every if case.key not in done}.values())


def run(cells: Sequence[Cell], directory: Path, executor: Executor, progress: Progress) -> dict[str, Record]:
    """Run the unfinished cases; the records of all of them by key. Failed ones are tried again.

    One command at a time in a directory: two would run the same cases and train the same networks twice.
    """
    with alone(directory):
        return _run(cells, directory, executor, progress)


def _run(cells: Sequence[Cell], directory: Path, executor: Executor, progress: Progress) -> dict[str, Record]:
    file = RecordFile(directory / RECORDS)
    todo = unfinished(cells, directory)
    keys = {case.key for cell in cells for case in cell.cases}
    progress.planned(len(keys), len(keys) - len(todo))
    works = [_work(case, directory, progress) for case in todo]
    watch: Watch[Work] = Watch(
        lambda work: progress.started(work.case), lambda work, *way: progress.moved(work.case, *way)
    )
    for work, result in executor.run(play, works, watch):
        record = _kept(directory, lost(work, result.why) if isinstance(result, Lost) else result)
        file.append(record)
        progress.finished(work.case, record)
    return {record.key: record for record in file.read() if record.key in keys}


def _kept(directory: Path, played: Played) -> Record:
    """The record with the places of its pictures, which are written first."""
    if played.finding is None:
        return played.record
    strips = save_pictures(directory, played.record.key, played.finding)
    return played.record.model_copy(update={"extra": {**played.record.extra, "strips": strips}})


def _work(case: Case, directory: Path, progress: Progress) -> Work:
    setup, population = case.experiment.setup, case.population
    clients, words = members(setup, population, case.client), population.words(setup.warm_up is not None)
    weights = _weights(case, directory, progress)
    return Work(case, clients, words, weights, None if weights is None else _accuracy(case, weights))


def _accuracy(case: Case, weights: str) -> float:
    return _accuracy_of(case.experiment.setup, case.population, case.seed, weights)


@functools.cache
def _accuracy_of(setup: Setup, population: Population, seed: int, weights: str) -> float:
    with one_thread():
        return accuracy(setup, population, seed, weights)


def untrained(cases: Sequence[Case], directory: Path) -> list[Case]:
    """The cases whose network is still to be trained, one for each network."""
    warm = {path: case for case in cases if (path := _network_file(case, directory)) is not None}
    return [case for path, case in warm.items() if not path.is_file()]


def _network_file(case: Case, directory: Path, rounds: int | None = None) -> Path | None:
    setup = case.experiment.setup
    if setup.warm_up is None:
        return None
    warm_up = setup.warm_up if rounds is None else replace(setup.warm_up, rounds=rounds)
    key = warm_up_key(replace(setup, warm_up=warm_up), case.population, case.seed)
    return directory / TRAINED / f"{key}.safetensors"


def _checkpoint(case: Case, directory: Path) -> Checkpoint | None:
    """The longest of the shorter warm-ups that are there: a warm-up of 10 rounds goes through that of 5."""
    warm_up = case.experiment.setup.warm_up
    for rounds in range(0 if warm_up is None else warm_up.rounds - 1, 0, -1):
        path = _network_file(case, directory, rounds)
        if path is not None and path.is_file():
            return Checkpoint(rounds, str(path))
    return None


def _weights(case: Case, directory: Path, progress: Progress) -> str | None:
    """The file of the case's trained network, which is trained here where there is none yet."""
    setup, path = case.experiment.setup, _network_file(case, directory)
    if setup.warm_up is None or path is None:
        return None
    if not path.is_file():
        name = f"{setup.network} for {setup.warm_up.rounds} rounds"

        def trained(done: int, total: int) -> None:
            progress.trained(name, done, total)

        with one_thread():
            since = _checkpoint(case, directory)
            model = warmed_up(setup, case.population, case.seed, trained, since)
        write_bytes(path, save(model.state_dict()))
    return str(path)
