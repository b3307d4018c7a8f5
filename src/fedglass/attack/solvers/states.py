"""States of long searches on disk, from which a run that was stopped continues.

A run draws everything from its seed, so that its n-th search is the same whenever the run is repeated. Draws that an
energy makes at each evaluation are the exception: after a stop they begin anew.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from torch import Tensor

from fedglass.core.resumable import resume, write_state, writing_into

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
