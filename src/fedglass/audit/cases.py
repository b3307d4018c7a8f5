"""The cases of an audit, each one probe of one target, and the callbacks that report their progress.

An audit plays and scores attacks. The re-creation of a published table measures what its paper did.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from fedglass.attack.parts import Progress
from fedglass.audit.target import Target
from fedglass.verdict.directory import Evidence
from fedglass.verdict.judge import Verdict
from fedglass.verdict.records import Record


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

    def decided(self, verdict: Verdict) -> None:
        """Report a verdict that no further case can change, such as a leak."""
        return


class QuietProgress(AuditProgress):
    """Callbacks that do nothing."""
