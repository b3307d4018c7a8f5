"""The cases of an audit: one probe of one target, once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from fedglass import __version__
from fedglass.attack.parts import Progress
from fedglass.audit.target import Source, Target, TargetInfo
from fedglass.core.identity import digest, identity_text
from fedglass.core.rng import derive
from fedglass.verdict.directory import Evidence
from fedglass.verdict.records import Record

# What is done with a target: an audit plays and judges an attack, a published table measures what its paper did.


@dataclass(frozen=True, eq=False)
class ProbeResult:
    """What came of a target."""

    record: Mapping[str, Any]
    """Fields of the record, in whose `extra` goes what records have no field for."""
    evidence: Evidence | None = None
    """What is kept beside the record, to look at."""


class Probe(Protocol):
    """A frozen dataclass whose parts say what they need to know: nothing else of the oracles is told to it."""

    def measure(self, target: Target, seed: int, progress: Progress) -> ProbeResult:
        """`target` is a copy of its own, on the device that the case runs on."""
        ...


class MessageProbe(Probe, Protocol):
    """A probe of an audit: an attack, the candidate game, or the check of a message."""

    kind: ClassVar[str]
    """That of its records: `attack`, `game` or `certificate`."""

    @property
    def metrics(self) -> tuple[str, ...]: ...

    @property
    def played(self) -> object:
        """What decides the figures, for the key of a case."""
        ...


Subject = TypeVar("Subject")


@dataclass(frozen=True, eq=False)
class Case(Generic[Subject]):
    """One probe of one target, once. `key` is its identity: what decides the outcome decides the key."""

    key: str
    title: str
    probe: Probe
    seed: int
    """What the probe's random numbers are drawn from."""
    subject: Subject
    """From what the target is made, known before any client has trained."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the record that are known before the case is played."""


@dataclass(frozen=True)
class TargetPlace:
    """Where an audit finds a target."""

    source: int
    """The position of its source in the audit."""
    target: int
    """The position of the target in the source."""


def enumerate_cases(
    sources: Sequence[Source],
    probes: Mapping[str, MessageProbe],
    repeats: int,
    seed: int,
) -> Iterator[Case[TargetPlace]]:
    """Every probe of every target, attacks `repeats` times.

    Attacks that meet the same target in the same repeat share their seed, so that they are compared from the
    same start. The gate is no part of a key: it is applied at the end, and can be judged anew at any time.
    """
    texts = {name: identity_text(probe.played, f"Attack {name!r}") for name, probe in probes.items()}
    for i, source in enumerate(sources):
        identity = source.identity()
        for j, info in enumerate(source.infos()):
            for name, probe in probes.items():
                for repeat in range(repeats if probe.kind == "attack" else 1):
                    case_seed = derive(seed, "case", source.name, info.spec, repeat)
                    identities = [info.identity, name, texts[name], *probe.metrics, str(case_seed)]
                    suffix = f" (repeat {repeat + 1})" if repeat else ""
                    yield Case(
                        digest(__version__, identity, *identities)[:32],
                        f"{name}: {info.words}{suffix}",
                        probe,
                        case_seed,
                        TargetPlace(i, j),
                        _facts(name, probe, info, repeat),
                    )


def _facts(name: str, probe: MessageProbe, info: TargetInfo, repeat: int) -> dict[str, Any]:
    facts = {"kind": probe.kind, "attack": name, "attack_repr": repr(probe.played), "view": info.words}
    facts |= {"view_name": info.name, "standpoint": info.standpoint}
    return {**facts, "round": info.round, "repeat": repeat}


# How an audit or a re-creation tells its caller where it is.


class AuditProgress(Protocol):
    """All calls come from the thread that started the run."""

    def planned(self, cases: int, done: int) -> None:
        """How many cases there are, and how many of them an earlier run has finished."""

    def trained(self, name: str, done: int, total: int) -> None:
        """Rounds of a federation that have been simulated."""

    def started(self, case: Case[Any]) -> None: ...

    def moved(self, case: Case[Any], done: int, total: int) -> None:
        """Iterations of a running attack."""

    def finished(self, case: Case[Any], record: Record) -> None: ...


class NoProgress:
    """Says nothing."""

    def planned(self, cases: int, done: int) -> None: ...

    def trained(self, name: str, done: int, total: int) -> None: ...

    def started(self, case: Case[Any]) -> None: ...

    def moved(self, case: Case[Any], done: int, total: int) -> None: ...

    def finished(self, case: Case[Any], record: Record) -> None: ...
