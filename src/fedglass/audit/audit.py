"""An audit as a value, and its run: from sources and attacks to records and a verdict."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path

import torch

from fedglass.attack.hypotheses import AnyAttack
from fedglass.audit.cases import Case, Place, enumerate_cases
from fedglass.audit.check_message import CheckMessage
from fedglass.audit.crew import answers_of
from fedglass.audit.effort import Effort
from fedglass.audit.engine import play_unfinished
from fedglass.audit.executors.executor import Executor, kept
from fedglass.audit.executors.in_process import InProcess
from fedglass.audit.isolation import oracle_facts
from fedglass.audit.machine import one_thread
from fedglass.audit.play import Work
from fedglass.audit.play_attack import PlayAttack
from fedglass.audit.play_game import PlayGame
from fedglass.audit.probe import MessageProbe
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
from fedglass.recipes.catalogue import recipe
from fedglass.verdict.doubts import with_refutations
from fedglass.verdict.gate import Gate
from fedglass.verdict.judge import Verdict, judge
from fedglass.verdict.summary import Summary, summarise

CPU = torch.device("cpu")
HERE = InProcess()
EXACT, GAME, CERTIFICATE = "exact", "singling_out", "certificate"
"""What every audit does with every message; the first is an attack that a plan may name too."""
Prepared = Callable[..., list[Work]]


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
    """How long attacks of its own choice may take."""
    chosen: frozenset[str] = frozenset()
    """The attacks that nobody named and the audit chose itself: they are run only while nothing is decided."""
    everything: bool = False
    """Whether these are run to their end whatever is decided."""
    minutes: float | None = None
    """How long they may take in all; by default as the effort says."""

    def __post_init__(self) -> None:
        if not self.sources:
            raise UsageError("An audit needs at least one federation or recording.")
        reserved = {CERTIFICATE, GAME} & set(self.attacks)
        if reserved:
            raise UsageError(f"No attack may be called {min(reserved)!r}, which every audit has of its own: rename it.")
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
    def probes(self) -> dict[str, MessageProbe]:
        """What is done with every message, the cheap and decisive first."""
        first: dict[str, MessageProbe] = {CERTIFICATE: CheckMessage()}
        if EXACT not in self.attacks:
            first[EXACT] = PlayAttack(recipe(EXACT), self.metrics)
        first[GAME] = PlayGame(sum(len(source.infos()) for source in self.sources))
        return {**first, **{name: PlayAttack(attack, self.metrics) for name, attack in self.attacks.items()}}

    @cached_property
    def cases(self) -> tuple[Case[Place], ...]:
        """Every probe of every target, attacks repeated."""
        return tuple(enumerate_cases(self.sources, self.probes, self.repeats, self.seed))

    @property
    def required(self) -> list[Case[Place]]:
        """The cases that always run."""
        return [case for case in self.cases if case.facts["attack"] not in self.chosen]

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

    @property
    def searches(self) -> list[Record]:
        """The records of the attacks that were named, without what every audit does of its own."""
        return [record for record in self.records if record.attack not in (EXACT, GAME, CERTIFICATE)]


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

    targets = _Targets(job, said, executor)

    def prepared(todo: Sequence[Case[Place]], deadline: float | None = None) -> list[Work]:
        return [Work(case, targets.of(case), device, deadline) for case in todo]

    play_unfinished(job.required, directory, executor, prepared, said)
    _search(job, directory, executor, prepared, said)
    summary = _summed_up(job, directory, file)
    records = with_refutations(file.read())
    return Result(directory, judge(records, job.gate, missing_of(job, records)), records, summary)


def _search(job: Job, directory: Path, executor: Executor, prepared: Prepared, said: Progress) -> None:
    """Run the attacks that the audit chose itself, one after another, until one shows a leak or time is over."""
    started, file = time.time(), RecordFile(directory / RECORDS)
    optional = [case for case in job.cases if case.facts["attack"] in job.chosen]
    everything = job.everything or job.effort is Effort.THOROUGH
    for name in dict.fromkeys(case.facts["attack"] for case in optional):
        state = judge(file.read(), job.gate).state
        if state in ("leak", "clear") and not everything:
            return
        minutes = job.effort.minutes(state == "exposed") if job.minutes is None else job.minutes
        deadline = None if minutes is None or job.everything else started + 60 * minutes
        if deadline is not None and time.time() >= deadline:
            return
        group = [case for case in optional if case.facts["attack"] == name]
        play_unfinished(group, directory, executor, partial(prepared, deadline=deadline), said, cut_short=everything)


def missing_of(job: Job, records: Sequence[Record]) -> int:
    """Return how many cases that always run have no record yet."""
    return len({case.key for case in job.required} - {record.key for record in records})


def _summed_up(job: Job, directory: Path, file: RecordFile) -> Summary:
    scales = {name: scale_of(name) for name in job.metrics}
    records = file.read()
    summary = summarise(records, job.gate, len(records) + missing_of(job, records), scales)
    summary.write(directory / SUMMARY)
    return summary


@dataclass(eq=False)
class _Targets:
    """The messages of the sources, each made when something is first left to do with it."""

    job: Job
    said: Progress
    executor: Executor
    made: dict[int, Sequence[Target | Pending]] = field(default_factory=dict)

    def of(self, case: Case[Place]) -> Target | Pending:
        """Return the target of a case, without what its probe has no use for."""
        place = case.subject
        if place.source not in self.made:
            self.made[place.source] = self._targets(self.job.sources[place.source])
        target = self.made[place.source][place.target]
        if not isinstance(target, Target):
            return target
        kind = case.facts["kind"]
        return target.without(pool=kind == "attack", others=kind != "certificate")

    def _targets(self, source: Source) -> Sequence[Target | Pending]:
        def trained(done: int, total: int) -> None:
            self.said.trained(source.name, done, total)

        with one_thread():
            return source.targets(trained, answers_of(self.executor))
