"""An audit as a value, its rehearsal and its run: from sources and attacks to records and a verdict.

The rehearsal refuses what could only fail after the training, or deep in an attack. Nothing is trained or attacked in
it: the parts of every attack are bound to a message of zeros, and a defence sees two examples.
"""

from __future__ import annotations

import enum
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any

import torch

from fedglass import __version__
from fedglass.attack.best_of import AnyAttack
from fedglass.attack.parts import needs_of
from fedglass.audit.check_message import CheckMessage
from fedglass.audit.knowledge import describe_learned
from fedglass.audit.play import Work, play_unfinished
from fedglass.audit.probes import PlayAttack, PlayGame, oracle_facts, without_unused_oracles
from fedglass.audit.recorded import Recorded
from fedglass.audit.simulated import Source
from fedglass.audit.target import AuditProgress, Case, PendingTarget, Section, Target
from fedglass.core.errors import UsageError
from fedglass.core.facts import Fact, refusal
from fedglass.core.files import write_atomic
from fedglass.core.identity import digest, identity_text
from fedglass.core.metric_scale import scale_of
from fedglass.core.rng import derive
from fedglass.core.types import Observation
from fedglass.execution.executor import Executor, InProcess, as_usage_error, client_trainer, persistent
from fedglass.execution.machine import repeatable_arithmetic
from fedglass.metrics.catalogue import DEFAULT_METRICS, metric, why_not
from fedglass.recipes import recipe
from fedglass.verdict.collect_doubts import with_refutations
from fedglass.verdict.directory import PLAN, RECORDS, SUMMARY, RecordFile, alone, claim
from fedglass.verdict.gate import Gate
from fedglass.verdict.judge import Verdict, judge
from fedglass.verdict.records import Record
from fedglass.verdict.summary import Summary, summarise
from fedglass.verdict.texts import count, percent


class Effort(enum.Enum):
    """The time for attacks that an audit chooses itself; attacks that a plan names always run.

    Quick: exact attacks, candidate game and certificate alone. Standard: searches too, until one shows a leak or their
    time is over. Thorough: all of them, without a limit.
    """

    QUICK = "quick"
    STANDARD = "standard"
    THOROUGH = "thorough"

    def minutes(self, decided: bool) -> float | None:
        """Return the minutes for all searches; `decided`: the exit code is settled, and pictures are a bonus."""
        if self is Effort.THOROUGH:
            return None
        if self is Effort.QUICK:
            return 0.0
        return 1.0 if decided else 5.0

    def __repr__(self) -> str:
        return f"Effort.{self.name}"


def rehearse(sources: Sequence[Source], attacks: Mapping[str, AnyAttack]) -> None:
    """Refuse the first attack or defence that could not be played, and say why."""
    for source in sources:
        # Views that differ in the client alone are all alike, unless the client trains in its own way.
        different: dict[tuple[object, ...], Observation] = {}
        for observation in (view_result.observation for view_result in source.rehearse()):
            knows = observation.knows
            different[knows.sizes, knows.training, knows.steps, knows.lr, observation.facts] = observation
        # Attacks that simulate clients never guess their sizes.
        sizes_assumed = isinstance(source, Recorded) and source.sizes_assumed
        for observation in different.values():
            for name, attack in attacks.items():
                with as_usage_error(f"attack {name!r}"):
                    if sizes_assumed and Fact.CLIENT_SIZES in needs_of(attack):
                        raise refusal("Simulating an aggregate", [Fact.EQUAL_CLIENTS])
                    attack.check(replace(observation, knows=without_unused_oracles(observation.knows, attack)))


CPU = torch.device("cpu")
IN_PROCESS = InProcess()
EXACT, GAME, CERTIFICATE = "exact", "singling_out", "certificate"
"""Probes of every message in every audit; the first is an attack that a plan may name too."""
Prepared = Callable[..., list[Work]]


MessageProbe = PlayAttack | PlayGame | CheckMessage
Place = tuple[int, int]
"""The positions of a source in an audit, and of a target in the source."""


def enumerate_cases(
    sources: Sequence[Source], probes: Mapping[str, MessageProbe], repeats: int, seed: int
) -> Iterator[Case[Place]]:
    """Yield every probe of every target, attacks `repeats` times.

    Attacks on the same target in the same repeat share their seed, so that they are compared from the same start. The
    gate is not part of a key: it is applied at the end, and can be changed at any time.
    """
    played = {name: probe.attack if isinstance(probe, PlayAttack) else probe for name, probe in probes.items()}
    texts = {name: identity_text(decisive, f"Attack {name!r}") for name, decisive in played.items()}
    for i, source in enumerate(sources):
        identity = source.identity()
        for j, info in enumerate(source.infos()):
            for name, probe in probes.items():
                facts = {"kind": probe.kind, "attack": name, "attack_repr": repr(played[name]), **info.facts}
                for repeat in range(repeats if probe.kind == "attack" else 1):
                    case_seed = derive(seed, "case", source.name, info.spec, repeat)
                    identities = [info.identity, name, texts[name], *probe.metrics, str(case_seed)]
                    yield Case(
                        digest(__version__, identity, *identities)[:32],
                        f"{name}: {info.text}" + (f" (repeat {repeat + 1})" if repeat else ""),
                        probe,
                        case_seed,
                        (i, j),
                        {**facts, "repeat": repeat},
                    )


@dataclass(frozen=True, eq=False)
class Job:
    """An audit: its sources, its attacks, and the gate that judges the outcome."""

    sources: Sequence[Source]
    attacks: Mapping[str, AnyAttack]
    metrics: tuple[str, ...] = DEFAULT_METRICS
    gate: Gate = field(default_factory=Gate)
    repeats: int = 1
    seed: int = 0
    plan: str | None = None
    """The plan file's text, kept in the audit directory."""
    descriptions: Mapping[str, str] = field(default_factory=dict)
    """Sentences about the attacks, by name."""
    effort: Effort = Effort.STANDARD
    """How long attacks that the audit chooses itself may take."""
    chosen: frozenset[str] = frozenset()
    """Attacks that the audit chose itself: they run only while nothing is decided."""
    everything: bool = False
    """Whether these run to their end even if the verdict is decided."""
    minutes: float | None = None
    """Minutes for all searches together; by default searches of a plan have no limit, and others that of the effort."""

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
        for name, attack in self.attacks.items():
            needed = map(Fact, oracle_facts(attack))
            missing = [fact for fact in needed if not all(source.knows.grants(fact) for source in self.sources)]
            if missing:
                raise refusal(f"attack {name!r}", missing)
        titles = [source.name for source in self.sources]
        if len(set(titles)) != len(titles):
            raise UsageError(f"Federations need different names, got {titles}.")

    @cached_property
    def probes(self) -> dict[str, MessageProbe]:
        """The probes of every message, the cheap and decisive first."""
        first: dict[str, MessageProbe] = {CERTIFICATE: CheckMessage()}
        if EXACT not in self.attacks:
            first[EXACT] = PlayAttack(recipe(EXACT), self.metrics)
        first[GAME] = PlayGame(sum(len(source.infos()) for source in self.sources))
        return {**first, **{name: PlayAttack(attack, self.metrics) for name, attack in self.attacks.items()}}

    @cached_property
    def cases(self) -> tuple[Case[Place], ...]:
        """All cases: every probe of every target, attacks repeated."""
        return tuple(enumerate_cases(self.sources, self.probes, self.repeats, self.seed))

    @property
    def required(self) -> list[Case[Place]]:
        """The cases that always run."""
        return [case for case in self.cases if case.facts["attack"] not in self.chosen]

    @cached_property
    def digest(self) -> str:
        """The identity of the audit; the gate is not part of it, since it can be changed at any time."""
        return digest(*(case.key for case in self.cases))


@dataclass(frozen=True, eq=False)
class AuditResult:
    """The result of an audit: its records, its summary and its verdict."""

    directory: Path
    verdict: Verdict
    records: Sequence[Record]
    summary: Summary

    @property
    def searches(self) -> list[Record]:
        """The records of the named attacks, without the probes of every audit."""
        return [record for record in self.records if record.attack not in (EXACT, GAME, CERTIFICATE)]


def run(
    job: Job,
    directory: Path,
    *,
    executor: Executor = IN_PROCESS,
    device: torch.device = CPU,
    progress: AuditProgress | None = None,
) -> AuditResult:
    """Play every case that the directory has no finished record of, and judge them all.

    Records do not depend on the executor: every attack runs on one thread, and so does every client.
    """
    with alone(directory), persistent(executor) as ready:
        return _run(job, directory, ready, device, progress or AuditProgress())


def _run(job: Job, directory: Path, executor: Executor, device: torch.device, progress: AuditProgress) -> AuditResult:
    claim(directory, job.digest)
    if job.plan is not None:
        write_atomic(directory / PLAN, job.plan)
    file = RecordFile(directory / RECORDS)
    # Written before the work too: a report of an audit that was stopped then knows what is missing.
    _summed_up(job, directory, file)

    @cache
    def targets_of(number: int) -> Sequence[Target | PendingTarget]:
        source = job.sources[number]
        with repeatable_arithmetic():
            return source.targets(partial(progress.trained, source.name), client_trainer(executor, device))

    def prepared(todo: Sequence[Case[Place]], deadline: float | None = None) -> list[Work]:
        return [Work(case, _used(targets_of(case.subject[0]), case), device, deadline) for case in todo]

    known = EarlyVerdict(progress, job.gate)
    _play_required(job, directory, executor, prepared, known)
    _search(job, directory, executor, prepared, known)
    summary = _summed_up(job, directory, file)
    records = with_refutations(file.read())
    return AuditResult(directory, judge(records, job.gate, missing_of(job, records)), records, summary)


class EarlyVerdict(AuditProgress):
    """Callbacks that announce a verdict that no further case can change as soon as it is known."""

    def __init__(self, inner: AuditProgress, gate: Gate) -> None:
        self.inner, self._gate = inner, gate
        self._open = gate.max_share == 0  # a share may still fall

    def finished(self, case: Case[Any], record: Record) -> None:
        super().finished(case, record)
        verdict = judge([record], self._gate) if self._open else None
        if verdict is not None and verdict.exit_code == 1:
            self._open = False
            self.decided(verdict)


def _play_required(job: Job, directory: Path, executor: Executor, prepared: Prepared, progress: AuditProgress) -> None:
    """Run the cases that always run; with a time limit the searches among them come last, and stop when it is over."""
    if job.minutes is None or job.everything or job.chosen:
        play_unfinished(job.required, directory, executor, prepared, progress, cut_short=True)
        return
    deadline = time.time() + 60 * job.minutes
    first = [case for case in job.required if case.facts["attack"] in (CERTIFICATE, EXACT, GAME)]
    play_unfinished(first, directory, executor, prepared, progress, cut_short=True)
    searches = [case for case in job.required if case not in first]
    if searches:
        limited = partial(prepared, deadline=deadline)
        play_unfinished(searches, directory, executor, limited, progress, cut_short=True, deadline=deadline)


def _search(job: Job, directory: Path, executor: Executor, prepared: Prepared, progress: AuditProgress) -> None:
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
        play_unfinished(
            group, directory, executor, partial(prepared, deadline=deadline), progress, cut_short=everything
        )


def missing_of(job: Job, records: Sequence[Record]) -> int:
    """Return how many cases that always run have no record yet."""
    return len({case.key for case in job.required} - {record.key for record in records})


def _summed_up(job: Job, directory: Path, file: RecordFile) -> Summary:
    scales = {name: scale_of(name) for name in job.metrics}
    records = file.read()
    summary = summarise(records, job.gate, len(records) + missing_of(job, records), scales)
    summary.write(directory / SUMMARY)
    return summary


def _used(targets: Sequence[Target | PendingTarget], case: Case[Place]) -> Target | PendingTarget:
    """Return the target of a case without what its probe does not use: it travels to every worker."""
    target, kind = targets[case.subject[1]], case.facts["kind"]
    if not isinstance(target, Target):
        return target
    return replace(
        target,
        pool=None if kind == "attack" else target.pool,
        same_noise_in=target.same_noise_in if kind == "certificate" else {},
    )


def threat_model(job: Job) -> list[Section]:
    """Return the threat model as sections: what is protected, who attacks with what, and when the audit fails."""
    sections = [section for source in job.sources for section in source.threat()]
    attacks = [job.descriptions.get(name, f"{name}.") for name in job.attacks]
    drawn = {name: learned for name, attack in job.attacks.items() if (learned := describe_learned(attack))}
    attacks += [f"{name} looks for images that a network can draw: {learned}." for name, learned in drawn.items()]
    attacks.append("Exact attacks, the candidate game and the check of each message run first.")
    times = "" if job.repeats == 1 else f", each attack {job.repeats} times"
    sections.append((f"Attacks ({count(len(job.cases), 'case')} in all{times})", attacks))
    sections.append(("Judgement", _judgement(job)))
    return sections


def _judgement(job: Job) -> list[str]:
    gate = job.gate
    allowed = "any image" if gate.max_share == 0 else f"more than {percent(gate.max_share)} of the images"
    lines = [
        f"LEAK (exit code 1): an attack recovers {allowed}: {gate.rule}, and better than every blind guess.",
        "EXPOSED (exit code 1): the message names its records among 1,000 candidates more often than "
        f"{percent(gate.max_singling_out)} of the time, and more often than records that were not used.",
        "CLEAR (exit code 0): a certificate bounds the success of any adversary in naming a record among 1,000 by "
        f"{percent(gate.max_success)}.",
        f"INCONCLUSIVE (exit code {3 if gate.inconclusive_fails else 0}): everything else.",
    ]
    if gate.trust_declared:
        lines.append("Declared trainings and defences are believed where nothing tests them (gate.trust_declared).")
    reasons = {name: why for name in job.metrics for source in job.sources if (why := why_not(name, source.shape))}
    lines.append(f"Metrics: {', '.join(name for name in job.metrics if name not in reasons)}.")
    # A metric that nobody asked for is not missed.
    missed = {} if job.metrics == DEFAULT_METRICS else reasons
    return lines + [f"{name} is left out. {why}" for name, why in missed.items()]
