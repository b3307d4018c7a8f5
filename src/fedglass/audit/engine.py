"""Plays the cases that a directory has no finished record of, and keeps what comes of each as it comes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from fedglass.audit.cases import Case, Subject
from fedglass.audit.executors.executor import Executor, Lost, Watch
from fedglass.audit.play import Outcome, Work, failed, play
from fedglass.audit.progress import Progress
from fedglass.ledger.doubts import Kind
from fedglass.ledger.records import RECORDS, Record, RecordFile

Prepare = Callable[[Sequence[Case[Subject]]], Sequence[Work]]
"""From what is to be played to what a worker needs for it: where networks are trained that cases share."""


def unfinished(cases: Sequence[Case[Subject]], directory: Path, *, cut_short: bool = False) -> list[Case[Subject]]:
    """The cases without a finished record, each key once; failed ones, and with `cut_short` stopped ones, run again."""
    records = RecordFile(directory / RECORDS).read()
    done = {record.key for record in records if record.status == "done" and not (cut_short and was_cut_short(record))}
    found: dict[str, Case[Subject]] = {}
    for case in cases:
        if case.key not in done:
            found.setdefault(case.key, case)
    return list(found.values())


def was_cut_short(record: Record) -> bool:
    """Return whether an attack was stopped when its time was over."""
    return any(each.kind is Kind.OUT_OF_TIME for each in record.doubts)


def play_unfinished(
    cases: Sequence[Case[Subject]],
    directory: Path,
    executor: Executor,
    prepare: Prepare[Subject],
    said: Progress,
    *,
    cut_short: bool = False,
) -> None:
    """Play what is unfinished. Records and evidence are on disk before anything else is awaited."""
    file, todo = RecordFile(directory / RECORDS), unfinished(cases, directory, cut_short=cut_short)
    whole = len({c.key for c in cases})
    said.planned(whole, whole - len(todo))
    if not todo:
        return

    def started(work: Work) -> None:
        said.started(work.case)

    def moved(work: Work, done: int, total: int) -> None:
        said.moved(work.case, done, total)

    for work, result in executor.run(play, prepare(todo), Watch(started, moved)):
        outcome = Outcome(failed(work, result.why)) if isinstance(result, Lost) else result
        record = outcome.record if outcome.evidence is None else outcome.evidence.save(directory, outcome.record)
        file.append(record)
        said.finished(work.case, record)
