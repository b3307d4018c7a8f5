"""Worker processes of one thread each, which live as long as there is work and no longer than their parent.

Jobs and results travel as bytes through a pipe of each worker's own: no shared memory is needed, and a worker that
is killed (out of memory, say) takes only its own job with it.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import pickle
import signal
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, Generic, TypeVar

import torch

from fedglass.attack.parts import Progress
from fedglass.audit.machine import one_thread
from fedglass.core.errors import UsageError

EVERY = 0.2
"""Seconds between two words of progress."""
PATIENCE = 5.0
"""Seconds that a worker is given to end by itself."""

Job = TypeVar("Job")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Lost:
    """In place of a result: why there is none."""

    why: str


@dataclass(frozen=True, eq=False)
class Pool(Generic[Job, Result]):
    """Runs `work`, a function of a module, on each job; `moved` hears of the jobs' progress."""

    work: Callable[[Job, Progress], Result]
    workers: int
    started: Callable[[Job], None]
    moved: Callable[[Job, int, int], None]

    def run(self, jobs: Sequence[Job]) -> Iterator[tuple[Job, Result | Lost]]:
        """Jobs with their results, in the order in which they end."""
        count = min(self.workers, len(jobs))
        return self._here(jobs) if count <= 1 else self._apart(jobs, count)

    def _here(self, jobs: Sequence[Job]) -> Iterator[tuple[Job, Result | Lost]]:
        for job in jobs:
            self.started(job)

            def say(done: int, total: int, job: Job = job) -> None:
                self.moved(job, done, total)

            with one_thread():
                result = self.work(job, Throttled(say))
            yield job, result

    def _apart(self, jobs: Sequence[Job], count: int) -> Iterator[tuple[Job, Result | Lost]]:
        waiting = deque(jobs)
        _packed(jobs[0])  # what can not be sent is said before processes are started
        team: list[_Worker[Job]] = [_Worker.hired(self.work) for _ in range(count)]
        try:
            for worker in team:
                worker.take(waiting, self.started)
            while busy := {worker.pipe: worker for worker in team if worker.job is not None}:
                for pipe in wait(list(busy)):
                    worker = next(w for p, w in busy.items() if p is pipe)
                    heard, job = worker.hear(), worker.job
                    assert job is not None, "only busy workers are waited for"
                    if isinstance(heard, tuple):
                        self.moved(job, *heard)
                        continue
                    if isinstance(heard, Lost) and waiting:
                        team[team.index(worker)] = worker = _Worker.hired(self.work)
                    worker.take(waiting, self.started)
                    yield job, heard
        finally:
            for worker in team:
                worker.dismiss()


class Throttled:
    """A progress callback that speaks at most every so often, and at the end."""

    def __init__(self, say: Callable[[int, int], None]) -> None:
        self.say, self.last = say, -EVERY

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        if done >= total or now - self.last >= EVERY:
            self.last = now
            self.say(done, total)


@dataclass(eq=False)
class _Worker(Generic[Job]):
    """A process, our end of its pipe, and what it is working on."""

    process: BaseProcess
    pipe: Connection
    job: Job | None = None

    @classmethod
    def hired(cls, work: Callable[[Job, Progress], Any]) -> _Worker[Job]:
        # A forked copy of a process in which torch has run threads may hang: start afresh.
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(target=_serve, args=(theirs, work), daemon=True)
        process.start()
        theirs.close()
        return cls(process, ours)

    def take(self, waiting: deque[Job], started: Callable[[Job], None]) -> None:
        self.job = waiting.popleft() if waiting else None
        if self.job is not None:
            started(self.job)
            # A worker that is already gone is noticed when it is listened to.
            with contextlib.suppress(OSError):
                self.pipe.send_bytes(_packed(self.job))

    def hear(self) -> Any:
        """Progress as a tuple, the result, or `Lost` from a worker that is no more."""
        try:
            return pickle.loads(self.pipe.recv_bytes())
        except (EOFError, OSError):
            self.process.join(PATIENCE)
            code = self.process.exitcode
            cause = "it was killed, perhaps because memory ran out" if code == -signal.SIGKILL else "see its last words"
            return Lost(
                f"The worker process ended without a result (exit code {code}; {cause}). Use fewer workers or "
                "smaller batches, then run the same command again."
            )

    def dismiss(self) -> None:
        self.pipe.close()
        if self.job is not None:
            self.process.terminate()
        self.process.join(PATIENCE)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()


def _packed(job: object) -> bytes:
    try:
        return pickle.dumps(job)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise UsageError(
            f"The case can not be sent to a worker process ({error}): define the model and the parts in an "
            "importable module, or set workers to 1."
        ) from error


def _serve(pipe: Connection, work: Callable[[Any, Progress], Any]) -> None:
    """The life of a worker. It ends when its parent closes the pipe, or is no more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what Ctrl-C means
    torch.set_num_threads(1)

    def say(done: int, total: int) -> None:
        pipe.send_bytes(pickle.dumps((done, total)))

    with contextlib.suppress(EOFError, OSError):
        while True:
            job = pickle.loads(pipe.recv_bytes())
            pipe.send_bytes(pickle.dumps(work(job, Throttled(say))))
