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
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from fedglass.core.errors import UsageError
from fedglass.core.resumable import resume, write_state, writing_into


def check_iterations(iterations: int) -> None:
    """Refuse a run without a single iteration."""
    if iterations < 1:
        raise UsageError(f"attack.iterations must be at least 1, got {iterations}.")


class RateSchedule(Protocol):
    """The factor on the rate at iteration k of n."""

    def factor(self, k: int, n: int) -> float: ...


@dataclass(frozen=True)
class Constant:
    """The constant factor 1."""

    def factor(self, k: int, n: int) -> float:
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


@dataclass(frozen=True)
class Last:
    """The last (finite) iterate."""

    def start(self, tensors: Sequence[Tensor], iterations: int) -> None:
        """Return the state of a run that offers this many iterates and the final one: none."""


@dataclass(frozen=True)
class Lowest:
    """The iterate of lowest energy; compared on the device, without waiting for it."""

    def start(self, tensors: Sequence[Tensor], iterations: int) -> LowestIterate:
        """Return the state of a run that offers this many iterates and the final one."""
        return LowestIterate(tensors)


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

    def start(self, tensors: Sequence[Tensor], iterations: int) -> LowestIterate:
        # The k-th of n iterates has the progress k / n, computed as the solver does: no rounding moves the border.
        skip = sum(k / iterations < self.share for k in range(iterations))
        return LowestIterate(tensors, skip)


Keep = Last | Lowest | LowestFrom
"""The rule that chooses the iterate that a solver returns."""


class LowestIterate:
    """The offered iterate of lowest energy; the first few are not compared."""

    def __init__(self, tensors: Sequence[Tensor], skip: int = 0) -> None:
        self.skipped_left = skip
        self.best = [t.detach().clone() for t in tensors]
        self.energy = torch.full((), math.inf, device=tensors[0].device, dtype=tensors[0].dtype)

    def offer(self, energy: Tensor, tensors: Sequence[Tensor]) -> None:
        if self.skipped_left > 0:
            self.skipped_left -= 1
            return
        lower = (energy < self.energy) & torch.isfinite(energy)
        self.energy = torch.where(lower, energy.detach(), self.energy)
        for best, tensor in zip(self.best, tensors, strict=True):
            torch.where(lower, tensor.detach(), best, out=best)


SAVED_EVERY = 600.0
"""Seconds after which a search stores its state again."""
SECONDS = "seconds"


class SearchStates:
    """The folder of the states of one run's searches, in their order."""

    def __init__(self, folder: Path, identity: str, every: float = SAVED_EVERY) -> None:
        self.folder, self.identity, self.every = folder, identity, every
        self.started, self.begun = 0, time.monotonic()
        self.seconds_before = 0.0
        """The time that the run took before it was stopped."""

    def seconds(self) -> float:
        """Return the time that the run has taken, with that before it was stopped."""
        return self.seconds_before + time.monotonic() - self.begun

    def next_search(self) -> SearchState:
        """Return the state of the search that begins now."""
        self.started += 1
        return SearchState(self, self.folder / f"search-{self.started}")


class SearchState:
    """The state of one search on disk."""

    def __init__(self, states: SearchStates, folder: Path) -> None:
        self.states, self.folder, self.saved = states, folder, time.monotonic()

    def is_due(self) -> bool:
        """Return whether to save now."""
        return time.monotonic() - self.saved >= self.states.every

    def save(self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        """Write everything that the next iteration depends on."""
        with writing_into(self.folder):
            seconds = {SECONDS: self.states.seconds()}
            write_state(self.folder, tensors, self.states.identity, {**facts, **seconds})
        self.saved = time.monotonic()

    def resume(self, restore: Callable[[dict[str, Tensor], dict[str, Any]], None]) -> None:
        """Give the stored tensors and facts to `restore`; do nothing where none are stored."""

        def restored(tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
            restore(tensors, facts)
            self.states.seconds_before = max(self.states.seconds_before, float(facts[SECONDS]))

        resume(self.folder, self.states.identity, restored)


_CURRENT = ContextVar[SearchStates | None]("states of the searches of this run", default=None)


def next_search() -> SearchState | None:
    """Return the state of the search that begins now; None if this run stores none."""
    states = _CURRENT.get()
    return None if states is None else states.next_search()


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
