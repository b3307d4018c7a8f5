"""The strength of a defence: the option that says how much it protects, and the values that are worth a try."""

from __future__ import annotations

import math
from dataclasses import dataclass

from fedglass.core.errors import UsageError


@dataclass(frozen=True)
class Strength:
    """The option of a defence that is its strength, with a usual range; a defence names it as its attribute `strength`.

    Values are spread evenly in the logarithm of their distance from `origin`: 0 for noise and norms, where factors
    count, and 1 for shares of removed entries, where what is left counts.

    >>> Strength("std", 0.01, 1.0).at(0.5), Strength("share", 0.5, 0.995, origin=1).at(0.5)
    (0.1, 0.95)
    """

    option: str
    weakest: float
    strongest: float
    origin: float = 0.0

    def __post_init__(self) -> None:
        ratio = (self.strongest - self.origin) / ((self.weakest - self.origin) or math.nan)
        if not (0 < ratio < math.inf and ratio != 1):
            raise UsageError(
                f"{self.option} must go from its weakest to its strongest value on one side of {self.origin:g}, got "
                f"{self.weakest:g} and {self.strongest:g}: give two different values."
            )

    def at(self, position: float) -> float:
        """Return the value at a position from 0 (weakest) to 1 (strongest), with three digits of its distance."""
        first, last = self.weakest - self.origin, self.strongest - self.origin
        distance = first * (last / first) ** position
        return round(self.origin + float(f"{distance:.3g}"), 12)

    def position(self, value: float) -> float:
        """Return the position of a value."""
        first, last = self.weakest - self.origin, self.strongest - self.origin
        return math.log((value - self.origin) / first) / math.log(last / first)
