"""What runs the cases of an audit, and what it owes to its caller."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from fedglass.attack.parts import Progress

EVERY = 0.2
"""Seconds between two words of progress."""

Job = TypeVar("Job")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Lost:
    """In place of a result: why there is none."""

    why: str


@dataclass(frozen=True, eq=False)
class Watch(Generic[Job]):
    """Hears which job has started, and how many iterations of how many it has done."""

    started: Callable[[Job], None]
    moved: Callable[[Job, int, int], None]


class Executor(Protocol):
    """Runs a function on jobs, somewhere. What is needed of every executor:

    - Each job comes back exactly once, the same object that was given, with its result, in the order in which the
      jobs end. The caller keeps what it was handed, so results are handed over as they come, not at the end.
    - A job whose process or machine is gone comes back with `Lost` and the reason. It takes no other job with it,
      and is not tried again: the next run of the audit does that.
    - Results do not depend on the executor. `work` runs on one thread of torch, a job sees nothing of the jobs
      before it, and the environment variables are those of the caller.
    - `work` is a function of a module, found by its name on the other side. Jobs and results travel as pickles; a
      job that can not be pickled is refused with a `UsageError`. An executor that stays in the process need not.
    - `work` turns the failures that it knows into results. What else it raises is a fault: it may end the run, or
      lose that job.
    - All calls of `watch` come from the thread that iterates. `started` comes before the job's other news; `moved`
      may come seldom (see `Throttled`), or never.
    - Nothing runs before the iterator is asked, and nothing is left running when it is closed or its process dies:
      closing is how Ctrl-C ends an audit.
    """

    def run(
        self, work: Callable[[Job, Progress], Result], jobs: Sequence[Job], watch: Watch[Job]
    ) -> Iterator[tuple[Job, Result | Lost]]:
        """Jobs with their results, in the order in which they end."""
        ...


class Throttled:
    """A progress callback that speaks at most every so often, and at the end."""

    def __init__(self, say: Callable[[int, int], None]) -> None:
        self.say, self.last = say, -EVERY

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        if done >= total or now - self.last >= EVERY:
            self.last = now
            self.say(done, total)
