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

import torch

from fedglass.attack.parts import Progress
from fedglass.core.errors import UsageError
from fedglass.core.registry import register
from fedglass.execution.executor import (
    Executor,
    InProcess,
    Job,
    Lost,
    Ready,
    Result,
    Throttled,
    Watch,
    packed,
    unpacked,
)
from fedglass.execution.fork_server import context, refuse_while_loading, warm

PATIENCE = 5.0
"""Seconds that a worker is given to end by itself."""


@register("executors", "processes", summary="worker processes of this machine")
def executor_for(workers: int) -> Executor:
    """This process for one worker, processes of their own for more.

    >>> executor_for(1), executor_for(2)
    (InProcess(), Processes(workers=2))
    """
    return InProcess() if workers == 1 else Processes(workers)


@dataclass(frozen=True)
class Processes:
    """Runs the jobs in so many processes of this machine. A single job, or a single worker, stays in this process."""

    workers: int

    def __post_init__(self) -> None:
        if self.workers < 1:
            raise UsageError(f"workers must be at least 1, got {self.workers}.")
        if self.workers > 1:
            refuse_while_loading()

    def run(
        self, work: Callable[[Job, Progress], Result], jobs: Sequence[Job], watch: Watch[Job]
    ) -> Iterator[tuple[Job, Result | Lost]]:
        """Jobs with their results, in the order in which they end."""
        with self.kept() as team:
            yield from team.run(work, jobs, watch)

    @contextlib.contextmanager
    def kept(self) -> Iterator[Ready]:
        """The processes are started by the first run that needs them, and end with the context."""
        team = _Team(self.workers)
        try:
            yield team
        finally:
            team.dismiss()


@dataclass(eq=False)
class _Team:
    """So many processes, or fewer where there never was that much to do."""

    most: int
    workers: list[_Worker] = field(default_factory=list)

    def slots(self) -> int:
        return self.most

    def run(
        self, work: Callable[[Job, Progress], Result], jobs: Sequence[Job], watch: Watch[Job]
    ) -> Iterator[tuple[Job, Result | Lost]]:
        """Jobs with their results, in the order in which they end."""
        count = min(self.most, len(jobs))
        return InProcess().run(work, jobs, watch) if count <= 1 else self._apart(work, jobs, watch, count)

    def _apart(
        self, work: Callable[[Job, Progress], Result], jobs: Sequence[Job], watch: Watch[Job], count: int
    ) -> Iterator[tuple[Job, Result | Lost]]:
        waiting = deque(jobs)
        packed((work, jobs[0]))  # what can not be sent is said before processes are started
        try:
            for index in range(count):
                if index == len(self.workers):
                    self.workers.append(_Worker.hired(work))
                self.workers[index].take(work, waiting, watch.started)
            while busy := {worker.pipe: worker for worker in self.workers if worker.job is not None}:
                for pipe in wait(list(busy)):
                    worker = next(w for p, w in busy.items() if p is pipe)
                    heard, job = worker.hear(), worker.job
                    if isinstance(heard, _Moved):
                        watch.moved(job, heard.done, heard.total)
                        continue
                    worker.job = None
                    if isinstance(heard, Lost):
                        self._leave(worker)
                        if waiting:
                            self.workers.append(worker := _Worker.hired(work))
                    if waiting:
                        worker.take(work, waiting, watch.started)
                    yield job, heard if isinstance(heard, Lost) else heard.result
        finally:
            for worker in [w for w in self.workers if w.job is not None]:
                self._leave(worker)

    def _leave(self, worker: _Worker) -> None:
        self.workers.remove(worker)
        worker.dismiss()

    def dismiss(self) -> None:
        for worker in list(self.workers):
            self._leave(worker)


@dataclass(frozen=True)
class _Moved:
    """A worker's word on how far it is."""

    done: int
    total: int


@dataclass(frozen=True, eq=False)
class _Ended:
    """A worker's last word on a job."""

    result: Any


@dataclass(eq=False)
class _Worker:
    """A process, our end of its pipe, and what it is working on."""

    process: BaseProcess
    pipe: Connection
    job: Any = None

    @classmethod
    def hired(cls, work: Callable[[Any, Progress], Any]) -> _Worker:
        warm(work.__module__)
        start = context()
        ours, theirs = start.Pipe()
        process = start.Process(target=_serve, args=(theirs, dict(os.environ)), daemon=True)
        process.start()
        theirs.close()
        return cls(process, ours)

    def take(self, work: Callable[[Job, Progress], Any], waiting: deque[Job], started: Callable[[Job], None]) -> None:
        self.job = waiting.popleft()
        started(self.job)
        # A worker that is already gone is noticed when it is listened to.
        with contextlib.suppress(OSError):
            self.pipe.send_bytes(packed((work, self.job)))

    def hear(self) -> _Moved | _Ended | Lost:
        """Progress, the result, or `Lost` from a worker that is no more."""
        try:
            heard: _Moved | _Ended = unpacked(self.pipe.recv_bytes())
        except (EOFError, OSError):
            self.process.join(PATIENCE)
            code = self.process.exitcode
            cause = "it was killed, perhaps because memory ran out" if code == -signal.SIGKILL else "see its last words"
            return Lost(
                f"The worker process ended without a result (exit code {code}; {cause}). Use fewer workers or "
                "smaller batches, then run the same command again."
            )
        return heard

    def dismiss(self) -> None:
        self.pipe.close()
        if self.job is not None:
            self.process.terminate()
        self.process.join(PATIENCE)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()


def _serve(pipe: Connection, environment: Mapping[str, str]) -> None:
    """The life of a worker. It ends when its parent closes the pipe, or is no more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what Ctrl-C means
    # A fork server keeps the environment in which it was started, perhaps long ago.
    os.environ.clear()
    os.environ.update(environment)
    torch.set_num_threads(1)

    def say(done: int, total: int) -> None:
        pipe.send_bytes(packed(_Moved(done, total)))

    with contextlib.suppress(EOFError, OSError):
        while True:
            work, job = unpacked(pipe.recv_bytes())
            pipe.send_bytes(packed(_Ended(work(job, Throttled(say)))))
