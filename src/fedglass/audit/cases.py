"""The cases of an audit, each one probe of one target, and the callbacks that report their progress.

An audit plays and scores attacks. The re-creation of a published table measures what its paper did.
"""

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
from fedglass.verdict.records import ROUNDS, Record


@dataclass(frozen=True, eq=False)
class ProbeResult:
    """The result of a probe: fields of a record, and evidence."""

    record: Mapping[str, Any]
    """Fields of the record; `extra` holds what records have no field for."""
    evidence: Evidence | None = None
    """Images that are kept with the record."""


class Probe(Protocol):
    """A frozen dataclass that measures a target; its parts state the oracle facts that they need, and get no others."""

    def measure(self, target: Target, seed: int, progress: Progress) -> ProbeResult:
        """Measure a target, which is a copy on the device that the case runs on."""
        ...


class MessageProbe(Probe, Protocol):
    """A probe of an audit: an attack, the candidate game, or the check of a message."""

    kind: ClassVar[str]
    """The kind of its records: `attack`, `game` or `certificate`."""

    @property
    def metrics(self) -> tuple[str, ...]: ...

    @property
    def played(self) -> object:
        """The value that decides the figures, for the key of a case."""
        ...


Subject = TypeVar("Subject")


@dataclass(frozen=True, eq=False)
class Case(Generic[Subject]):
    """One probe of one target, once. `key` is its identity: everything that decides the outcome decides the key."""

    key: str
    title: str
    probe: Probe
    seed: int
    """The seed of the probe's random numbers."""
    subject: Subject
    """The origin of the target, known before any client has trained."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the record that are known before the case is played."""


@dataclass(frozen=True)
class TargetPlace:
    """The place of a target in an audit."""

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
    """Yield every probe of every target, attacks `repeats` times.

    Attacks on the same target in the same repeat share their seed, so that they are compared from the same start. The
    gate is not part of a key: it is applied at the end, and can be changed at any time.
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
                        f"{name}: {info.text}{suffix}",
                        probe,
                        case_seed,
                        TargetPlace(i, j),
                        _facts(name, probe, info, repeat),
                    )


def _facts(name: str, probe: MessageProbe, info: TargetInfo, repeat: int) -> dict[str, Any]:
    facts: dict[str, Any] = {"kind": probe.kind, "attack": name, "attack_repr": repr(probe.played), "view": info.text}
    facts |= {"view_name": info.name, "standpoint": info.standpoint}
    facts |= {} if info.rounds == 1 else {"extra": {ROUNDS: info.rounds}}
    return {**facts, "round": info.round, "repeat": repeat}


class AuditProgress(Protocol):
    """Callbacks for the progress of an audit; all calls come from the thread that started the run."""

    def planned(self, cases: int, done: int) -> None:
        """Report the number of cases, and of those that an earlier run has finished."""
        return

    def trained(self, name: str, done: int, total: int) -> None:
        """Report the rounds of a federation that have been simulated."""
        return

    def started(self, case: Case[Any]) -> None:
        return

    def moved(self, case: Case[Any], done: int, total: int) -> None:
        """Report the iterations of a running attack."""
        return

    def finished(self, case: Case[Any], record: Record) -> None:
        return


class QuietProgress(AuditProgress):
    """Callbacks that do nothing."""
