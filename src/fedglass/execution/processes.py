"""Worker processes of one thread each, which live as long as there is work and no longer than their parent.

Jobs and results travel as bytes through a pipe of each worker's own: no shared memory is needed, and a worker that
is killed (out of memory, say) takes only its own job with it.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

from fedglass.attack.parts import Progress
from fedglass.core.errors import UsageError
from fedglass.core.registry import register
from fedglass.execution.executor import (
    Callbacks,
    Executor,
    FailedJob,
    InProcess,
    Job,
    JobWork,
    PooledExecutor,
    Result,
    Results,
    from_bytes,
    throttled,
    to_bytes,
)
from fedglass.execution.fork_server import end_with_parent, refuse_while_loading, start_fork_server, start_method
from fedglass.execution.machine import use_worker_arithmetic

EXIT_SECONDS = 5.0
"""Seconds that a worker has to end by itself."""


@register("executors", "processes", summary="worker processes of this machine")
def executor_for(workers: int) -> Executor:
    """Return an executor of this process for one worker, and of worker processes for more.

    >>> executor_for(1), executor_for(2)
    (InProcess(), Processes(workers=2))
    """
    return InProcess() if workers == 1 else Processes(workers)


@dataclass(frozen=True)
class Processes:
    """Runs the jobs in worker processes of this machine. A single job, or a single worker, stays in this process."""

    workers: int

    def __post_init__(self) -> None:
        if self.workers < 1:
            raise UsageError(f"workers must be at least 1, got {self.workers}.")
        if self.workers > 1:
            refuse_while_loading()

    def run(self, work: JobWork[Job, Result], jobs: Sequence[Job], callbacks: Callbacks[Job]) -> Results[Job, Result]:
        """Yield each job with its result, in the order in which the jobs end."""
        with self.persistent() as pool:
            yield from pool.run(work, jobs, callbacks)

    @contextlib.contextmanager
    def persistent(self) -> Iterator[PooledExecutor]:
        """Keep the processes, which the first run that needs them starts, until the context ends."""
        pool = _Pool(self.workers)
        try:
            yield pool
        finally:
            pool.stop()


@dataclass(eq=False)
class _Pool:
    """Up to `limit` worker processes; each is started when there is a job for it."""

    limit: int
    workers: list[_Worker] = field(default_factory=list)

    def slots(self) -> int:
        return self.limit

    def run(self, work: JobWork[Job, Result], jobs: Sequence[Job], callbacks: Callbacks[Job]) -> Results[Job, Result]:
        """Yield each job with its result, in the order in which the jobs end."""
        count, waiting = min(self.limit, len(jobs)), deque(jobs)
        if count <= 1:
            yield from InProcess().run(work, jobs, callbacks)
            return
        to_bytes((work, jobs[0]))  # a job that cannot be sent is refused before processes are started
        try:
            for index in range(count):
                if index == len(self.workers):
                    self.workers.append(_Worker.start(work))
                self.workers[index].assign(work, waiting, callbacks.started)
            while busy := {worker.pipe: worker for worker in self.workers if worker.job is not None}:
                for pipe in wait(list(busy)):
                    worker = next(w for p, w in busy.items() if p is pipe)
                    (ended, answer), job = worker.receive(), worker.job
                    if not ended:
                        callbacks.moved(job, *answer)
                        continue
                    worker.job = None
                    if isinstance(answer, FailedJob):
                        self._remove(worker)
                        if waiting:
                            self.workers.append(worker := _Worker.start(work))
                    if waiting:
                        worker.assign(work, waiting, callbacks.started)
                    yield job, answer
        finally:
            for worker in [w for w in self.workers if w.job is not None]:
                self._remove(worker)

    def _remove(self, worker: _Worker) -> None:
        self.workers.remove(worker)
        worker.stop()

    def stop(self) -> None:
        for worker in list(self.workers):
            self._remove(worker)


@dataclass(eq=False)
class _Worker:
    """A process, our end of its pipe, and the job that it works on."""

    process: BaseProcess
    pipe: Connection
    job: Any = None

    @classmethod
    def start(cls, work: Callable[[Any, Progress], Any]) -> _Worker:
        start_fork_server(work.__module__)
        method = start_method()
        ours, theirs = method.Pipe()
        process = method.Process(target=_serve, args=(theirs, dict(os.environ)), daemon=True)
        process.start()
        theirs.close()
        return cls(process, ours)

    def assign(self, work: Callable[[Job, Progress], Any], waiting: deque[Job], started: Callable[[Job], None]) -> None:
        self.job = waiting.popleft()
        started(self.job)
        # A worker that is already gone is noticed when its answer is read.
        with contextlib.suppress(OSError):
            self.pipe.send_bytes(to_bytes((work, self.job)))

    def receive(self) -> tuple[bool, Any]:
        """Return whether the job has ended, and its result; before that, the iterations done, and of how many.

        The result is `FailedJob` if the process has ended.
        """
        try:
            message: tuple[bool, Any] = from_bytes(self.pipe.recv_bytes())
        except (EOFError, OSError):
            self.process.join(EXIT_SECONDS)
            code = self.process.exitcode
            cause = (
                "it was killed, perhaps because memory ran out" if code == -signal.SIGKILL else "see its output above"
            )
            return True, FailedJob(
                f"The worker process ended without a result (exit code {code}; {cause}). Use fewer workers or "
                "smaller batches, then run the same command again."
            )
        return message

    def stop(self) -> None:
        self.pipe.close()
        if self.job is not None:
            self.process.terminate()
        self.process.join(EXIT_SECONDS)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()


def _serve(pipe: Connection, environment: Mapping[str, str]) -> None:
    """Run the jobs that come through the pipe, until the parent closes it or ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what Ctrl-C means
    end_with_parent()
    # A fork server keeps the environment in which it was started, perhaps long ago.
    os.environ.clear()
    os.environ.update(environment)
    use_worker_arithmetic()

    def say(done: int, total: int) -> None:
        pipe.send_bytes(to_bytes((False, (done, total))))

    with contextlib.suppress(EOFError, OSError):
        while True:
            work, job = from_bytes(pipe.recv_bytes())
            pipe.send_bytes(to_bytes((True, work(job, throttled(say)))))
