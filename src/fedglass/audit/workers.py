"""Worker processes of one thread each, which live as long as there is work and no longer than their parent.

Work and outcomes travel as bytes through a pipe of each worker's own: no shared memory is needed, and a worker
that is killed (out of memory, say) takes only its own case with it.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import pickle
import signal
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess

import torch

from fedglass.audit.machine import one_thread
from fedglass.audit.play import Outcome, Work, failed, play
from fedglass.core.errors import UsageError

EVERY = 0.2
"""Seconds between two words of progress."""
PATIENCE = 5.0
"""Seconds that a worker is given to end by itself."""

Started = Callable[[Work], None]
Moved = Callable[[Work, int, int], None]


def in_process(works: Iterable[Work], started: Started, moved: Moved) -> Iterator[tuple[Work, Outcome]]:
    """One case after another, here, on one thread."""
    for work in works:
        started(work)

        def say(done: int, total: int, work: Work = work) -> None:
            moved(work, done, total)

        with one_thread():
            outcome = play(work, Throttled(say))
        yield work, outcome


def in_workers(works: Sequence[Work], workers: int, started: Started, moved: Moved) -> Iterator[tuple[Work, Outcome]]:
    """The cases spread over worker processes, in the order in which they end."""
    waiting = deque(works)
    _packed(works[0])  # what can not be sent is said before processes are started
    team = [_Worker.hired() for _ in range(min(workers, len(works)))]
    try:
        for worker in team:
            worker.take(waiting, started)
        while busy := {worker.pipe: worker for worker in team if worker.work is not None}:
            for pipe in wait(list(busy)):
                worker = next(w for p, w in busy.items() if p is pipe)
                heard, work = worker.hear(), worker.work
                assert work is not None, "only busy workers are waited for"
                if isinstance(heard, tuple):
                    moved(work, *heard)
                    continue
                if heard is None:
                    team.remove(worker)
                    heard = Outcome(failed(work, worker.obituary()))
                    if waiting:
                        worker = _Worker.hired()
                        team.append(worker)
                worker.take(waiting, started)
                yield work, heard
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
class _Worker:
    """A process, our end of its pipe, and what it is working on."""

    process: BaseProcess
    pipe: Connection
    work: Work | None = None

    @classmethod
    def hired(cls) -> _Worker:
        # A forked copy of a process in which torch has run threads may hang: start afresh.
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(target=_serve, args=(theirs,), daemon=True)
        process.start()
        theirs.close()
        return cls(process, ours)

    def take(self, waiting: deque[Work], started: Started) -> None:
        """Hand over the next case, if there is one."""
        self.work = waiting.popleft() if waiting else None
        if self.work is not None:
            started(self.work)
            # A worker that is already gone is noticed when it is listened to.
            with contextlib.suppress(OSError):
                self.pipe.send_bytes(_packed(self.work))

    def hear(self) -> tuple[int, int] | Outcome | None:
        """Progress, the outcome, or None from a worker that is no more."""
        try:
            heard = pickle.loads(self.pipe.recv_bytes())
        except (EOFError, OSError):
            return None
        assert isinstance(heard, tuple | Outcome)
        return heard

    def obituary(self) -> str:
        self.pipe.close()
        self.process.join(PATIENCE)
        code = self.process.exitcode
        cause = "it was killed, perhaps because memory ran out" if code == -signal.SIGKILL else "see its last words"
        return (
            f"The worker process ended without a result (exit code {code}; {cause}). Use fewer workers or "
            "smaller batches, then run the same command again."
        )

    def dismiss(self) -> None:
        self.pipe.close()
        if self.work is not None:
            self.process.terminate()
        self.process.join(PATIENCE)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()


def _packed(work: Work) -> bytes:
    try:
        return pickle.dumps(work)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise UsageError(
            f"The case can not be sent to a worker process ({error}): define the model and the parts in an "
            "importable module, or set workers to 1."
        ) from error


def _serve(pipe: Connection) -> None:
    """The life of a worker. It ends when its parent closes the pipe, or is no more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what Ctrl-C means
    torch.set_num_threads(1)

    def say(done: int, total: int) -> None:
        pipe.send_bytes(pickle.dumps((done, total)))

    with contextlib.suppress(EOFError, OSError):
        while True:
            work = pickle.loads(pipe.recv_bytes())
            pipe.send_bytes(pickle.dumps(play(work, Throttled(say))))
