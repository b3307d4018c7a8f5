"""How much an audit does beyond what decides quickly."""

from __future__ import annotations

import enum


class Effort(enum.Enum):
    """Attacks that a plan names always run; this is about those that an audit of a recording chooses itself.

    Quick: exact attacks, candidate game and certificate alone. Standard: searches too, until one shows a leak or their
    time is over. Thorough: all of them, without a limit.
    """

    QUICK = "quick"
    STANDARD = "standard"
    THOROUGH = "thorough"

    def minutes(self, decided: bool) -> float | None:
        """Return how long searches may take in all; `decided`: the exit code is settled, and pictures are a bonus."""
        if self is Effort.THOROUGH:
            return None
        if self is Effort.QUICK:
            return 0.0
        return 1.0 if decided else 5.0

    def __repr__(self) -> str:
        return f"Effort.{self.name}"
