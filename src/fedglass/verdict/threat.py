"""The threat model of an audit: who sees which messages, and what each adversary knows apart from them.

`fedglass check` makes it from a plan before anything has run, and the report makes it from the records. Both render
this one value.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from fedglass.verdict.records import KnownFact, Record

Facts = Mapping[str, KnownFact]
"""Fact -> what the adversary knows of it."""
UNNAMED = ("The adversary", "sees what is listed here.")
STANDPOINTS = {
    "server": ("The server", "sees the update of each client by itself."),
    "aggregate": (
        "The server behind secure aggregation",
        "sees only what the aggregation rule made of all updates of a round.",
    ),
    "peer": (
        "A peer (one of the clients)",
        "sees the global model before and after a round, and knows its own images and update.",
    ),
}
"""Standpoint -> who stands there, and what is seen from there."""


@dataclass(frozen=True)
class Sight:
    """One view of a message, and what the adversary knows when it plays one attack on it."""

    view: str
    standpoint: str
    knows: Facts
    attack: str = ""

    @classmethod
    def of(cls, record: Record) -> Sight:
        """Return the view and the knowledge that a record states."""
        return cls(record.view, record.standpoint, record.knows, record.attack)


@dataclass(frozen=True)
class ThreatModel:
    """All sights of an audit, grouped by standpoint and by knowledge."""

    sights: Sequence[Sight]

    @property
    def attacks(self) -> list[str]:
        return list(dict.fromkeys(sight.attack for sight in self.sights))

    @property
    def views(self) -> list[str]:
        return list(dict.fromkeys(sight.view for sight in self.sights))

    @property
    def standpoints(self) -> list[str]:
        """The standpoints in order; an empty one stands for all that have no name."""
        return list(dict.fromkeys(s.standpoint if s.standpoint in STANDPOINTS else "" for s in self.sights))

    @cached_property
    def common(self) -> Facts:
        """The facts that are the same in all sights."""
        first = self.sights[0].knows if self.sights else {}
        return {name: fact for name, fact in first.items() if all(s.knows.get(name) == fact for s in self.sights)}

    @property
    def different_names(self) -> list[str]:
        """The names of the facts that are not the same in all sights."""
        return list(dict.fromkeys(name for s in self.sights for name in s.knows if name not in self.common))

    @property
    def differences(self) -> list[tuple[list[Sight], Facts]]:
        """Each distinct set of the other facts, with the sights that have it; empty where all facts are common."""
        groups: dict[tuple[tuple[str, KnownFact | None], ...], list[Sight]] = {}
        for sight in self.sights:
            groups.setdefault(tuple((name, sight.knows.get(name)) for name in self.different_names), []).append(sight)
        return [
            (sights, {name: fact for name, fact in facts if fact is not None})
            for facts, sights in groups.items()
            if facts
        ]
