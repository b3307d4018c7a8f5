"""The executor that needs nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from fedglass.attack.parts import Progress
from fedglass.audit.executors.executor import Job, Lost, Result, Throttled, Watch
from fedglass.audit.machine import one_thread


@dataclass(frozen=True)
class InProcess:
    """Runs the jobs here, one after another. A job that kills its process ends the run."""

    def run(
        self, work: Callable[[Job, Progress], Result], jobs: Sequence[Job], watch: Watch[Job]
    ) -> Iterator[tuple[Job, Result | Lost]]:
        """Jobs with their results, in the order in which they were given."""
        for job in jobs:
            watch.started(job)

            def say(done: int, total: int, job: Job = job) -> None:
                watch.moved(job, done, total)

            with one_thread():
                result = work(job, Throttled(say))
            yield job, result
