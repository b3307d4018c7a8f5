"""One case from its target to its record, in whatever process it is given to."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import torch

from fedglass.attack.parts import Progress
from fedglass.audit.cases import Case
from fedglass.audit.failures import FAILURES, in_words
from fedglass.audit.isolation import isolated, oracle_facts, without_unused_oracles
from fedglass.audit.machine import peak_mib, reset_peak, return_memory, versions
from fedglass.audit.probe import Finding, Probe
from fedglass.audit.target import Pending, Target
from fedglass.audit.words import knowledge_in_words, learned_in_words
from fedglass.ledger.doubts import Kind, doubt
from fedglass.ledger.evidence import Evidence
from fedglass.ledger.records import Record

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
        "knows": knows | ({"images drawn by": learned} if learned else {}),
        "utility": dict(target.utility),
        "defences": None if target.defences is None else list(target.defences),
        "behaviours": list(target.behaviours),
        "participants": list(target.participants),
        "kept": list(target.kept),
        "behind": list(target.behind),
        "swept": dict(target.swept),
    }


def _found(work: Work, finding: Finding) -> dict[str, Any]:
    extra = {**work.case.facts.get("extra", {}), **finding.record.get("extra", {})}
    return {"status": "done", "oracle": bool(oracle_facts(work.case.probe)), **finding.record, "extra": extra}


def _spent(start: float) -> dict[str, Any]:
    when = datetime.now(UTC).isoformat(timespec="seconds")
    return {"seconds": time.perf_counter() - start, "peak_mib": peak_mib(), "finished": when}
