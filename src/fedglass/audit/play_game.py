"""The candidate game as a probe: does the message name the records that were trained on?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from fedglass.attack.parts import Progress
from fedglass.audit.play_attack import state_of
from fedglass.audit.probe import Finding
from fedglass.audit.target import Target
from fedglass.ledger.doubts import Doubt, Kind, doubt


@dataclass(frozen=True)
class PlayGame:
    """Plays the game on one of some messages, over which its limits are corrected."""

    messages: int = 1

    kind: ClassVar[str] = "game"
    metrics: ClassVar[tuple[str, ...]] = ()

    @property
    def played(self) -> PlayGame:
        """What decides the figures, for the key of a case."""
        return self

    def measure(self, target: Target, seed: int, progress: Progress) -> Finding:
        unsound = state_of(target.observation)
        if unsound is not None:
            return _finding(doubt(unsound))
        if target.truth is None:
            return _finding(doubt(Kind.NO_TRUTH))
        return _finding(doubt(Kind.NO_CANDIDATES, found=0, least=20))


def _finding(*doubts: Doubt, **fields: Any) -> Finding:
    return Finding({"kind": "game", "doubts": list(doubts), **fields})
