"""What is done with a target: an audit plays and judges an attack, a published table measures what its paper did."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from fedglass.attack.parts import Progress
from fedglass.audit.target import Target
from fedglass.ledger.evidence import Evidence


@dataclass(frozen=True, eq=False)
class Finding:
    """What came of a target."""

    record: Mapping[str, Any]
    """Fields of the record, in whose `extra` goes what records have no field for."""
    evidence: Evidence | None = None
    """What is kept beside the record, to look at."""


class Probe(Protocol):
    """A frozen dataclass whose parts say what they need to know: nothing else of the oracles is told to it."""

    def measure(self, target: Target, seed: int, progress: Progress) -> Finding:
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
