"""Runners of the checks: in a process that is killed when the time is over, or in this one.

An attack stops by itself between two iterations. One iteration, or one replay, of a large network may take longer than
a client can wait. Only killing the process stops these.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from queue import Empty, Queue
from threading import Thread

from fedglass.execution.fork_server import end_with_parent, start_fork_server, start_method
from fedglass.execution.machine import use_worker_arithmetic
from fedglass.guard.checks import CheckRequest
from fedglass.guard.received import ReceivedRequest
from fedglass.guard.report import CheckResult, Clock, Reason

Request = CheckRequest | ReceivedRequest
MARGIN = 0.05
"""Share of the time in which a process must send its result, before it is killed."""


@dataclass(frozen=True)
class InlineRunner:
    """Runs the checks in this process. The time is checked only between iterations of an attack and between replays."""

    def run(self, request: Request, seconds: float) -> CheckResult:
        return request.run(seconds)


@dataclass(frozen=True)
class SubprocessRunner:
    """Runs the checks in a new process, which is killed when the time is over: the limit always holds.

    The model and the attacks must be defined in a module that can be imported there. The first request of a client's
    process waits until torch is imported, a few seconds, which count.
    """

    def run(self, request: Request, seconds: float) -> CheckResult:
        clock, results = Clock(seconds), Queue[CheckResult]()
        packed = pickle.dumps(request)
        # In a thread, since a process starts only after the fork server has imported everything.
        Thread(target=_put_result, args=(packed, clock, results), daemon=True).start()
        try:
            return results.get(timeout=max(0.0, clock.remaining))
        except Empty:
            return CheckResult(reasons=(Reason.OUT_OF_TIME,))


def _put_result(packed: bytes, clock: Clock, results: Queue[CheckResult]) -> None:
    try:
        results.put(_run_in_process(packed, clock))
    except BaseException as error:  # noqa: BLE001 # after any error the update must not leave
        results.put(failed_checks(error))


def _run_in_process(packed: bytes, clock: Clock) -> CheckResult:
    """Return the result of a new process before the time is over; the process is killed in any case."""
    start_fork_server(__name__)
    start = start_method()
    ours, theirs = start.Pipe()
    process = start.Process(target=_serve, args=(theirs, dict(os.environ)), daemon=True)
    process.start()
    theirs.close()
    try:
        ours.send_bytes(pickle.dumps(max(0.0, clock.remaining) * (1 - MARGIN)))
        ours.send_bytes(packed)
        if not ours.poll(max(0.0, clock.remaining)):
            return CheckResult(reasons=(Reason.OUT_OF_TIME,))
        result: CheckResult = pickle.loads(ours.recv_bytes())
        return result
    finally:
        ours.close()
        process.kill()
        process.join()


def _serve(pipe: Connection, environment: Mapping[str, str]) -> None:
    """Answer one request in a process of its own; where it ends without an answer, its parent refuses."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what Ctrl-C means
    end_with_parent()
    os.environ.clear()
    os.environ.update(environment)
    use_worker_arithmetic()
    with contextlib.suppress(EOFError, OSError):
        clock = Clock(pickle.loads(pipe.recv_bytes()))
        request: Request = pickle.loads(pipe.recv_bytes())
        try:
            result = request.run(clock.remaining)
        except BaseException as error:  # noqa: BLE001 # even SystemExit must not let it leave; its text is not printed
            result = failed_checks(error)
        pipe.send_bytes(pickle.dumps(result))


def failed_checks(error: BaseException) -> CheckResult:
    """Return the result for an error in the guard itself, which is a reason to refuse."""
    return CheckResult(reasons=(Reason.FAULT,), fault=f"{type(error).__name__}: {error}")
