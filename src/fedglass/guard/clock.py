"""How much of a guard's time is left."""

from __future__ import annotations

import time


class OutOfTime(Exception):
    """There is no time left for what was to be done next."""


class Clock:
    """Runs from the moment it is made. As an attack's progress callback it ends the attack between two iterations."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds

    @property
    def left(self) -> float:
        return self._end - time.monotonic()

    def check(self) -> None:
        """Raise where the time is used up."""
        if self.left <= 0:
            raise OutOfTime

    def __call__(self, done: int, total: int) -> None:
        self.check()
