"""Plays the cases that a directory has no finished record of, and keeps what comes of each as it comes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from fedglass.audit.cases import Case, Subject
from fedglass.audit.executors.executor import Executor, Lost, Watch
from fedglass.audit.play import Outcome, Work, failed, play
from fedglass.audit.progress import Progress
from fedglass.ledger.records import RECORDS, RecordFile

Prepare = Callable[[Sequence[Case[Subject]]], Sequence[Work]]
"""From what is to be played to what a worker needs for it: where networks are trained that cases share."""


def unfinished(cases: Sequence[Case[Subject]], directory: Path) -> list[Case[Subject]]:
    """The cases without a finished record, each key once; failed ones are tried again."""
    done = RecordFile(directory / RECORDS).keys_done()
    found: dict[str, Case[Subject]] = {}
    for case in cases:
        if case.key not in done:
            found.setdefault(case.key, case)
    return list(found.values())


def play_unfinished(
    cases: Sequence[Case[Subject]], directory: Path, executor: Executor, prepare: Prepare[Subject], said: Progress
) -> None:
    """Play what is unfinished. Records and evidence are on disk before anything else is awaited."""
    file, todo, whole = RecordFile(directory / RECORDS), unfinished(cases, directory), len({c.key for c in cases})
    said.planned(whole, whole - len(todo))

    def started(work: Work) -> None:
        said.started(work.case)

    def moved(work: Work, done: int, total: int) -> None:
        said.moved(work.case, done, total)

    for work, result in executor.run(play, prepare(todo), Watch(started, moved)):
        outcome = Outcome(failed(work, result.why)) if isinstance(result, Lost) else result
        record = outcome.record if outcome.evidence is None else outcome.evidence.save(directory, outcome.record)
        file.append(record)
        said.finished(work.case, record)
