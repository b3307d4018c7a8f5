"""Playing cases: one case from its target to its record in any process, and all that have no record yet."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from fedglass.attack.parts import Progress
from fedglass.attack.solvers.schedules import SearchStates, storing
from fedglass.audit.knowledge import describe_knowledge, describe_learned
from fedglass.audit.probes import isolate, oracle_facts, without_unused_oracles
from fedglass.audit.target import AuditProgress, Case, PendingTarget, Probe, ProbeResult, Subject, Target, ready_target
from fedglass.execution.executor import FAILURES, Callbacks, Executor, FailedJob, failure_text
from fedglass.execution.machine import peak_mib, reset_peak, return_memory, versions
from fedglass.verdict.directory import RECORDS, Evidence, RecordFile
from fedglass.verdict.doubts import DoubtKind, doubt
from fedglass.verdict.records import KnownFact, Record

UNKNOWN = "unknown"
"""The client behind a message that was never made."""
COPIED = ("utility", "defences", "behaviours", "participants", "accepted", "contributors", "swept")
"""Fields that a record copies from its target."""
NAMED = 3
"""Clients behind a message that a record names one by one."""


@dataclass(frozen=True, eq=False)
class Work:
    """Everything that a worker needs for one case."""

    case: Case[Any]
    target: Target | PendingTarget
    device: torch.device
    deadline: float | None = None
    """The time at which the probe is stopped, in seconds since the epoch; None: never."""
    states: Path | None = None
    """The folder in which long searches store their state, to continue after a stop; None: they store none."""

    @property
    def key(self) -> str:
        """The case and the kind of device, which decide the outcome."""
        return f"{self.case.key} {self.device.type}"


def play_case(work: Work, progress: Progress) -> tuple[Record, Evidence | None]:
    """Run one case, and return its record and the evidence to save. A known kind of failure becomes a failed record.

    Time and peak memory are those of the probe alone, without making its target.
    """
    probe, start = work.case.probe, time.perf_counter()
    try:
        target = ready_target(work.target)
        target = _on_device(target, probe, work.device)
        return_memory()
        reset_peak()
        start = time.perf_counter()
        states = None if work.states is None else SearchStates(work.states / work.case.key, work.key)
        with storing(states):
            finding = probe.measure(target, work.case.seed, _until(work.deadline, progress))
        start -= 0.0 if states is None else states.seconds_before
    except OutOfTime:
        cut = doubt(DoubtKind.OUT_OF_TIME, seconds=round(time.perf_counter() - start))
        finding = ProbeResult({"doubts": [cut]})
    except FAILURES as error:
        return failed_record(work, failure_text(error)).model_copy(update=_spent(start)), None
    extra = {**work.case.facts.get("extra", {}), **finding.record.get("extra", {})}
    outcome = {"status": "done", "oracle": bool(oracle_facts(probe)), **finding.record, "extra": extra}
    record = Record.model_validate({**_known(work), **_of_target(target, probe), **outcome, **_spent(start)})
    return record, finding.evidence


def _on_device(target: Target, probe: Probe, device: torch.device) -> Target:
    """Return the target with a copy of its observation on a device, where its claims are checked too."""
    claim = None if target.claim is None else replace(target.claim, device=device)
    joint = tuple(_on_device(message, probe, device) for message in target.joint_targets)
    observation = isolate(target.observation, probe, device)
    return replace(target, observation=observation, claim=claim, joint_targets=joint)


class OutOfTime(Exception):  # not an error: the time was used up
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


def failed_record(work: Work, why: str) -> Record:
    """Return the record of a case that failed."""
    target = _of_target(work.target, work.case.probe) if isinstance(work.target, Target) else {"client": UNKNOWN}
    return Record.model_validate({**target, **_known(work), "status": "failed", "error": why})


def _known(work: Work) -> dict[str, Any]:
    case = work.case
    return {"key": case.key, "seed": case.seed, "versions": versions(work.device), **case.facts}


def _of_target(target: Target, probe: Probe) -> dict[str, Any]:
    named, more = target.contributors[:NAMED], len(target.contributors) - NAMED
    knows = describe_knowledge(without_unused_oracles(target.observation.knows, probe))
    learned = describe_learned(probe)
    return {
        "client": ", ".join(named) + (f" and {more} more" if more > 0 else ""),
        "knows": knows | ({"images drawn by": KnownFact(text=learned)} if learned else {}),
        **{name: getattr(target, name) for name in COPIED},
    }


def _spent(start: float) -> dict[str, Any]:
    when = datetime.now(UTC).isoformat(timespec="seconds")
    return {"seconds": time.perf_counter() - start, "peak_mib": peak_mib(), "finished": when}


Prepare = Callable[[Sequence[Case[Subject]]], Sequence[Work]]
"""Function from unfinished cases to work: it trains the networks that cases share."""


def unfinished_cases(
    cases: Sequence[Case[Subject]], directory: Path, *, cut_short: bool = False
) -> list[Case[Subject]]:
    """Return cases without a finished record, each key once; failed ones count, and with `cut_short` stopped ones."""
    records = RecordFile(directory / RECORDS).read()
    done = {record.key for record in records if record.status == "done" and not (cut_short and was_cut_short(record))}
    by_key: dict[str, Case[Subject]] = {}
    for case in cases:
        if case.key not in done:
            by_key.setdefault(case.key, case)
    return list(by_key.values())


def was_cut_short(record: Record) -> bool:
    """Return whether an attack was stopped when its time was over."""
    return any(doubt_.kind is DoubtKind.OUT_OF_TIME for doubt_ in record.doubts)


def play_unfinished(
    cases: Sequence[Case[Subject]],
    directory: Path,
    executor: Executor,
    prepare: Prepare[Subject],
    progress: AuditProgress,
    *,
    cut_short: bool = False,
    deadline: float | None = None,
) -> None:
    """Play all unfinished cases. Records and evidence are on disk before the next result is awaited.

    No case begins after the deadline. A case that ends without a report of its progress may end later.
    """
    file, todo = RecordFile(directory / RECORDS), unfinished_cases(cases, directory, cut_short=cut_short)
    count = len({c.key for c in cases})
    progress.planned(count, count - len(todo))
    if not todo or _is_over(deadline):
        return

    callbacks = Callbacks[Work](
        lambda work: progress.started(work.case), lambda work, done, total: progress.moved(work.case, done, total)
    )
    results = executor.run(play_case, prepare(todo), callbacks)
    for work, result in results:
        record, evidence = (failed_record(work, result.reason), None) if isinstance(result, FailedJob) else result
        record = record if evidence is None else evidence.save(directory, record)
        file.append(record)
        progress.finished(work.case, record)
        if _is_over(deadline):
            if isinstance(results, Generator):
                results.close()
            return


def _is_over(deadline: float | None) -> bool:
    return deadline is not None and time.time() >= deadline
