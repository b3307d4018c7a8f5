"""One case from its target to its record, in whatever process it is given to."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from fedglass.attack.parts import Progress
from fedglass.audit.cases import AuditProgress, Case, Finding, Probe, Subject
from fedglass.audit.knowledge import knowledge_in_words, learned_in_words
from fedglass.audit.play_attack import isolated, oracle_facts, without_unused_oracles
from fedglass.audit.target import Pending, Target
from fedglass.execution.executor import FAILURES, Executor, Lost, Watch, in_words
from fedglass.execution.machine import peak_mib, reset_peak, return_memory, versions
from fedglass.verdict.directory import RECORDS, Evidence, RecordFile
from fedglass.verdict.doubts import Kind, doubt
from fedglass.verdict.records import KnownFact, Record

UNKNOWN = "unknown"
"""Whose examples were behind a message that was never seen."""
NAMED = 3
"""Clients behind a message that a record names one by one."""


@dataclass(frozen=True, eq=False)
class Work:
    """All that a worker needs for one case."""

    case: Case[Any]
    target: Target | Pending
    device: torch.device
    deadline: float | None = None
    """When the probe is stopped, in seconds since the epoch; None: never."""

    @property
    def key(self) -> str:
        """What decides the outcome, the kind of device among it."""
        return f"{self.case.key} {self.device.type}"


@dataclass(frozen=True, eq=False)
class Outcome:
    """A record, and what is to be saved beside it."""

    record: Record
    evidence: Evidence | None = None


def play(work: Work, progress: Progress) -> Outcome:
    """Run one case. A known kind of failure becomes a failed record.

    Time and peak memory are those of the probe alone, without what was done to make its target.
    """
    probe, start = work.case.probe, time.perf_counter()
    try:
        target = work.target.target()
        target = replace(target, observation=isolated(target.observation, probe, work.device))
        return_memory()
        reset_peak()
        start = time.perf_counter()
        finding = probe.measure(target, work.case.seed, _until(work.deadline, progress))
    except OutOfTime:
        cut = doubt(Kind.OUT_OF_TIME, seconds=round(time.perf_counter() - start))
        finding = Finding({"doubts": [cut]})
    except FAILURES as error:
        return Outcome(failed(work, in_words(error)).model_copy(update=_spent(start)))
    fields = {**_known(work), **_of_target(target, probe), **_found(work, finding), **_spent(start)}
    return Outcome(Record.model_validate(fields), finding.evidence)


class OutOfTime(Exception):  # no error: the time was used up
    """The time that searches may take is over."""


def _until(deadline: float | None, progress: Progress) -> Progress:
    """Return a progress callback that ends what reports to it after a deadline."""
    if deadline is None:
        return progress

    def report(done: int, total: int) -> None:
        if time.time() > deadline:
            raise OutOfTime
        progress(done, total)

    return report


def failed(work: Work, why: str) -> Record:
    """The record of a case that could not be played to its end."""
    target = _of_target(work.target, work.case.probe) if isinstance(work.target, Target) else {"client": UNKNOWN}
    return Record.model_validate({**target, **_known(work), "status": "failed", "error": why})


def _known(work: Work) -> dict[str, Any]:
    case = work.case
    return {"key": case.key, "seed": case.seed, "versions": versions(work.device), **case.facts}


def _of_target(target: Target, probe: Probe) -> dict[str, Any]:
    named, more = target.behind[:NAMED], len(target.behind) - NAMED
    knows = knowledge_in_words(without_unused_oracles(target.observation.knows, probe))
    learned = learned_in_words(probe)
    return {
        "client": ", ".join(named) + (f" and {more} more" if more > 0 else ""),
        "knows": knows | ({"images drawn by": KnownFact(text=learned)} if learned else {}),
        "utility": dict(target.utility),
        "defences": None if target.defences is None else list(target.defences),
        "behaviours": list(target.behaviours),
        "participants": list(target.participants),
        "accepted": list(target.kept),
        "contributors": list(target.behind),
        "swept": dict(target.swept),
    }


def _found(work: Work, finding: Finding) -> dict[str, Any]:
    extra = {**work.case.facts.get("extra", {}), **finding.record.get("extra", {})}
    return {"status": "done", "oracle": bool(oracle_facts(work.case.probe)), **finding.record, "extra": extra}


def _spent(start: float) -> dict[str, Any]:
    when = datetime.now(UTC).isoformat(timespec="seconds")
    return {"seconds": time.perf_counter() - start, "peak_mib": peak_mib(), "finished": when}


# Plays the cases that a directory has no finished record of, and keeps what comes of each as it comes.


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
    said: AuditProgress,
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
