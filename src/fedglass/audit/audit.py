"""An audit as a value, and its run: from sources and attacks to records and a verdict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import torch

from fedglass.attack.hypotheses import AnyAttack
from fedglass.audit.cases import Case, Place, enumerate_cases
from fedglass.audit.crew import answers_of
from fedglass.audit.engine import play_unfinished
from fedglass.audit.executors.executor import Executor, kept
from fedglass.audit.executors.in_process import InProcess
from fedglass.audit.isolation import oracle_facts
from fedglass.audit.looks import Effort
from fedglass.audit.machine import one_thread
from fedglass.audit.play import Work
from fedglass.audit.play_attack import PlayAttack
from fedglass.audit.progress import Progress, Silent
from fedglass.audit.target import Pending, Source, Target
from fedglass.core.errors import UsageError
from fedglass.core.facts import Fact, refusal
from fedglass.core.files import write_atomic
from fedglass.core.identity import digest
from fedglass.core.scale import scale_of
from fedglass.ledger.lock import alone
from fedglass.ledger.records import PLAN, RECORDS, SUMMARY, Record, RecordFile, claim
from fedglass.metrics.catalogue import USUAL, metric
from fedglass.rounds.client import Answers
from fedglass.verdict.gate import Gate, Verdict
from fedglass.verdict.summary import Summary, summarise

CPU = torch.device("cpu")
HERE = InProcess()


@dataclass(frozen=True, eq=False)
class Job:
    """What is attacked, by which attacks, and how the outcome is judged."""

    sources: Sequence[Source]
    attacks: Mapping[str, AnyAttack]
    metrics: tuple[str, ...] = USUAL
    gate: Gate = field(default_factory=Gate)
    repeats: int = 1
    seed: int = 0
    plan: str | None = None
    """The plan file's text, kept in the audit directory."""
    effort: Effort = Effort.STANDARD
    """How much is done to be sure of what was not found."""

    def __post_init__(self) -> None:
        if not self.sources or not self.attacks:
            raise UsageError("An audit needs at least one federation or recording, and at least one attack.")
        if self.repeats < 1:
            raise UsageError(f"repeats must be at least 1, got {self.repeats}.")
        for name in self.metrics:
            metric(name)
        if self.gate.metric not in self.metrics:
            raise UsageError(
                f"gate.metric is {self.gate.metric!r}, which is not among the metrics "
                f"({', '.join(self.metrics)}): add it to metrics.names or gate on one of them."
            )
        self._check_oracles()
        titles = [source.name for source in self.sources]
        if len(set(titles)) != len(titles):
            raise UsageError(f"Federations need different names, got {titles}.")

    def _check_oracles(self) -> None:
        for name, attack in self.attacks.items():
            needed = map(Fact, oracle_facts(attack))
            missing = [fact for fact in needed if not all(source.knows.grants(fact) for source in self.sources)]
            if missing:
                raise refusal(f"attack {name!r}", missing)

    @cached_property
    def cases(self) -> tuple[Case[Place], ...]:
        """Every attack on every target, repeated."""
        probes = {
            name: PlayAttack(attack, self.metrics, self.gate, self.effort) for name, attack in self.attacks.items()
        }
        return tuple(enumerate_cases(self.sources, probes, self.repeats, self.seed))

    @cached_property
    def digest(self) -> str:
        """The identity of the whole; the gate is no part of it, since it can be judged anew at any time."""
        return digest(*(case.key for case in self.cases))


@dataclass(frozen=True, eq=False)
class Result:
    """What an audit came to."""

    directory: Path
    verdict: Verdict
    records: Sequence[Record]
    summary: Summary


def run(
    job: Job,
    directory: Path,
    *,
    executor: Executor = HERE,
    device: torch.device = CPU,
    progress: Progress | None = None,
) -> Result:
    """Play every case that the directory has no finished record of, and judge them all.

    Records do not depend on the executor: every attack runs on one thread, and so does every client.
    """
    with alone(directory), kept(executor) as ready:
        return _run(job, directory, ready, device, Silent() if progress is None else progress)


def _run(job: Job, directory: Path, executor: Executor, device: torch.device, said: Progress) -> Result:
    claim(directory, job.digest)
    if job.plan is not None:
        write_atomic(directory / PLAN, job.plan)
    file = RecordFile(directory / RECORDS)
    # Written before the work too: a report of an audit that was stopped then knows what is missing.
    _summed_up(job, directory, file)

    def prepared(todo: Sequence[Case[Place]]) -> list[Work]:
        targets = _targets(job, {case.subject.source for case in todo}, said, answers_of(executor))
        return [Work(case, targets[case.subject.source][case.subject.target], device) for case in todo]

    play_unfinished(job.cases, directory, executor, prepared, said)
    summary = _summed_up(job, directory, file)
    records = file.read()
    missing = max(0, len(job.cases) - len(records))
    return Result(directory, job.gate.judge(records, missing), records, summary)


def _summed_up(job: Job, directory: Path, file: RecordFile) -> Summary:
    scales = {name: scale_of(name) for name in job.metrics}
    summary = summarise(file.read(), job.gate, len(job.cases), scales)
    summary.write(directory / SUMMARY)
    return summary


def _targets(job: Job, wanted: set[int], said: Progress, answers: Answers) -> dict[int, Sequence[Target | Pending]]:
    """The messages of those sources that have something left to do."""
    targets: dict[int, Sequence[Target | Pending]] = {}
    for index in sorted(wanted):
        source = job.sources[index]

        def trained(done: int, total: int, name: str = source.name) -> None:
            said.trained(name, done, total)

        with one_thread():
            targets[index] = source.targets(trained, answers)
    return targets
