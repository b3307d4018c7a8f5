"""What runs the cases of an audit, and what it owes to its caller."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar, runtime_checkable

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
    - A job whose process or machine is gone comes back with `Lost` and the reason, and takes no other job with it. On
      this machine it is not tried again: the next run of the audit does that. On a cluster, where machines come and
      go, it may be tried a few times before it is lost.
    - Results do not depend on the executor. `work` runs on one thread of torch, a job sees nothing of the jobs
      before it, and the environment variables are those of the caller; on other machines those that begin with
      `FEDGLASS_`, since the rest is the other machine's own business.
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


@runtime_checkable
class Ready(Executor, Protocol):
    """An executor whose workers wait for the next run."""

    def slots(self) -> int:
        """How many jobs run at a time."""
        ...


@runtime_checkable
class Lasting(Protocol):
    """An executor that can keep its workers from one run to the next, for many runs of short jobs."""

    def kept(self) -> AbstractContextManager[Ready]:
        """The same executor with workers that end with the context; they are started when they are first needed."""
        ...


def kept(executor: Executor) -> AbstractContextManager[Executor]:
    """The executor with workers that stay for the context, where it can keep them."""
    return executor.kept() if isinstance(executor, Lasting) else nullcontext(executor)


class Throttled:
    """A progress callback that speaks at most every so often, and at the end."""

    def __init__(self, say: Callable[[int, int], None]) -> None:
        self.say, self.last = say, -EVERY

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        if done >= total or now - self.last >= EVERY:
            self.last = now
            self.say(done, total)
