"""How a solver's rate changes on its way; each is a function of the share of iterations done."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol


class Schedule(Protocol):
    """The factor on the rate at iteration k of n."""

    def factor(self, k: int, n: int) -> float: ...


@dataclass(frozen=True)
class Constant:
    """Always one."""

    def factor(self, k: int, n: int) -> float:
        return 1.0


@dataclass(frozen=True)
class StepDecay:
    """Times `by` at each of the given shares of the way; the defaults are those of Inverting Gradients.

    >>> [round(StepDecay().factor(k, 1000), 4) for k in (0, 374, 375, 625, 875)]
    [1.0, 1.0, 0.1, 0.01, 0.001]
    """

    at: tuple[float, ...] = (3 / 8, 5 / 8, 7 / 8)
    by: float = 0.1

    def factor(self, k: int, n: int) -> float:
        factor: float = self.by ** sum(k >= share * n for share in self.at)
        return factor


@dataclass(frozen=True)
class ExponentialDecay:
    """by^(k / every), without steps, whatever the number of iterations."""

    by: float
    every: int = 1

    def factor(self, k: int, n: int) -> float:
        factor: float = self.by ** (k / self.every)
        return factor


@dataclass(frozen=True)
class CosineDecay:
    """One until the share `start` of the way, then half a cosine down to `floor`.

    >>> schedule = CosineDecay(start=0.5)
    >>> [round(schedule.factor(k, 100), 3) for k in (0, 50, 75, 100)]
    [1.0, 1.0, 0.5, 0.0]
    """

    start: float = 0.0
    floor: float = 0.0

    def factor(self, k: int, n: int) -> float:
        share = max(0.0, (k / n - self.start) / (1 - self.start))
        return self.floor + (1 - self.floor) * 0.5 * (1 + math.cos(math.pi * min(share, 1.0)))
