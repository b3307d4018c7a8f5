"""Options of solvers: schedules of the rate, the iterate that a solver returns, and states of long searches on disk.

A schedule is a function of the share of iterations done. A solver returns the last iterate or the one of lowest energy,
never one that is chosen by the truth.

A run that was stopped continues from its stored state. It draws everything from its seed, so that its n-th search is
the same whenever the run is repeated. Draws that an
energy makes at each evaluation are the exception: after a stop they begin anew.
"""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from fedglass.core.errors import UsageError
from fedglass.core.resumable import resume, write_state, writing_into


@dataclass(frozen=True)
class Constant:
    """The constant factor 1."""

    def factor(self, k: int, n: int) -> float:
        """Return the factor on the rate at iteration k of n."""
        return 1.0


@dataclass(frozen=True)
class StepDecay:
    """A factor `by` at each of these shares of the iterations; the defaults are those of Inverting Gradients.

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
    """by^(k / every), without steps, for any number of iterations."""

    by: float
    every: int = 1

    def factor(self, k: int, n: int) -> float:
        factor: float = self.by ** (k / self.every)
        return factor


@dataclass(frozen=True)
class CosineDecay:
    """One until the share `start` of the iterations, then half a cosine down to `floor`.

    >>> schedule = CosineDecay(start=0.5)
    >>> [round(schedule.factor(k, 100), 3) for k in (0, 50, 75, 100)]
    [1.0, 1.0, 0.5, 0.0]
    """

    start: float = 0.0
    floor: float = 0.0

    def factor(self, k: int, n: int) -> float:
        share = max(0.0, (k / n - self.start) / (1 - self.start))
        return self.floor + (1 - self.floor) * 0.5 * (1 + math.cos(math.pi * min(share, 1.0)))


RateSchedule = Constant | StepDecay | ExponentialDecay | CosineDecay
"""The factor on the rate at each iteration."""


@dataclass(frozen=True)
class Last:
    """The last (finite) iterate."""

    def skipped(self, iterations: int) -> None:
        """Return None: no energies are compared."""


@dataclass(frozen=True)
class Lowest:
    """The iterate of lowest energy; compared on the device, without waiting for it."""

    def skipped(self, iterations: int) -> int:
        """Return how many of a run's first iterates are not compared: none."""
        return 0


@dataclass(frozen=True)
class LowestFrom:
    """The iterate of lowest energy among those from this share of the iterations on.

    It is for an objective that gains a term later (`After`): an earlier iterate would win only because its energy lacks
    that term. The final iterate is always among those compared.
    """

    share: float

    def __post_init__(self) -> None:
        if not 0 <= self.share <= 1:
            raise UsageError(f"keep.share must be between 0 and 1, got {self.share:g}.")

    def skipped(self, iterations: int) -> int:
        # The k-th of n iterates has the progress k / n, computed as the solver does: no rounding moves the border.
        return sum(k / iterations < self.share for k in range(iterations))


Keep = Last | Lowest | LowestFrom
"""The rule that chooses the iterate that a solver returns."""


SAVED_EVERY = 600.0
"""Seconds after which a search stores its state again."""
SECONDS = "seconds"


class SearchStates:
    """The states on disk of one run's searches, which come one after another, each in a folder of its own."""

    def __init__(self, folder: Path, identity: str, every: float = SAVED_EVERY) -> None:
        self.folder, self.identity, self.every = folder, identity, every
        self.searches, self.begun = 0, time.monotonic()
        self.saved = self.begun
        self.seconds_before = 0.0
        """The time that the run took before it was stopped."""

    def seconds(self) -> float:
        """Return the time that the run has taken, with that before it was stopped."""
        return self.seconds_before + time.monotonic() - self.begun

    @property
    def search_folder(self) -> Path:
        """The folder of the search that runs now."""
        return self.folder / f"search-{self.searches}"

    def is_due(self) -> bool:
        """Return whether to save now."""
        return time.monotonic() - self.saved >= self.every

    def save(self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        """Write everything that the search's next iteration depends on."""
        with writing_into(self.search_folder):
            write_state(self.search_folder, tensors, self.identity, {**facts, SECONDS: self.seconds()})
        self.saved = time.monotonic()

    def begin_search(self, restore: Callable[[dict[str, Tensor], dict[str, Any]], None]) -> None:
        """Begin the next search: give its stored tensors and facts, where there are some, to `restore`."""
        self.searches, self.saved = self.searches + 1, time.monotonic()

        def restored(tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
            restore(tensors, facts)
            self.seconds_before = max(self.seconds_before, float(facts[SECONDS]))

        resume(self.search_folder, self.identity, restored)


_CURRENT = ContextVar[SearchStates | None]("states of the searches of this run", default=None)


def current_states() -> SearchStates | None:
    """Return the states of this run's searches; None if it stores none."""
    return _CURRENT.get()


@contextmanager
def storing(states: SearchStates | None) -> Iterator[None]:
    """Store the states of the searches within; after their run has ended without an error they are removed."""
    token = _CURRENT.set(states)
    try:
        yield
    finally:
        _CURRENT.reset(token)
    if states is not None:
        shutil.rmtree(states.folder, ignore_errors=True)
