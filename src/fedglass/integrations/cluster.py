"""What a cluster does for an executor, whatever others call it: it takes a task and gives back what came of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol


class Crashed(Exception):
    """The process or the machine of a task is gone; elsewhere the same task may succeed."""


class Failed(Exception):
    """A task ended with an error of its own, and would do so again."""


class Cluster(Protocol):
    """Tasks are handed in, and known by their handles until they have been answered or cancelled."""

    def slots(self) -> int:
        """How many tasks should be in its hands at a time."""
        ...

    def submit(self, function: Callable[[Any], Any], task: Any, key: str) -> Any:
        """Have `function(task)` called by some worker. Tasks of one key have the same result."""
        ...

    def ended(self, handles: Sequence[Any]) -> Sequence[Any]:
        """Those that have ended; waits a moment for the first of them, and may return none."""
        ...

    def answer(self, handle: Any) -> Any:
        """What came of a task that has ended; raises `Crashed` or `Failed`."""
        ...

    def forget(self, handle: Any) -> None:
        """Clear away what is left of a task that has ended: its answer is in safe hands."""
        ...

    def cancel(self, handle: Any) -> None:
        """End a task that nobody waits for any more."""
        ...
