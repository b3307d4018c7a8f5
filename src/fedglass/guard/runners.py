"""Where the checks run: in a process that is ended when the time is over, or here.

An attack stops by itself between two iterations. One iteration, or one replay, of a large network may take longer
than a client can wait; only the end of a process stops these.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
from collections.abc import Mapping
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from queue import Empty, Queue
from threading import Thread
from typing import Protocol

import torch

from fedglass.execution.fork_server import start_fork_server, start_method
from fedglass.guard.checks import Errand, examine
from fedglass.guard.report import Clock, Examined, Reason

MARGIN = 0.05
"""The share of the time that a process is given to say what it has found, before it is ended."""


class Runner(Protocol):
    """Runs an errand within a time."""

    def run(self, errand: Errand, seconds: float) -> Examined: ...


@dataclass(frozen=True)
class Here:
    """In this process. The time is a wish: it is looked at between the iterations of an attack and between replays."""

    def run(self, errand: Errand, seconds: float) -> Examined:
        return examine(replace(errand, out=errand.out.on_cpu()), seconds)


@dataclass(frozen=True)
class Apart:
    """In a process of its own, which is killed when the time is over: the limit holds whatever the errand does.

    The model and the attacks must be defined in a module that can be imported there. The first errand of a client's
    process waits until torch is imported, a few seconds, which count.
    """

    def run(self, errand: Errand, seconds: float) -> Examined:
        clock, answers = Clock(seconds), Queue[Examined]()
        packed = pickle.dumps(replace(errand, out=errand.out.on_cpu()))
        # In a thread, since a process is started only after what it is forked from has imported all it needs.
        Thread(target=_sent, args=(packed, clock, answers), daemon=True).start()
        try:
            return answers.get(timeout=max(0.0, clock.left))
        except Empty:
            return Examined(reasons=(Reason.OUT_OF_TIME,))


def _sent(packed: bytes, clock: Clock, answers: Queue[Examined]) -> None:
    try:
        answers.put(_asked(packed, clock))
    except Exception as error:  # noqa: BLE001 # whatever it is, the update must not leave
        answers.put(failed(error))


def _asked(packed: bytes, clock: Clock) -> Examined:
    """What a new process says of an errand before the time is over; it is ended in any case."""
    start_fork_server(__name__)
    start = start_method()
    ours, theirs = start.Pipe()
    process = start.Process(target=_serve, args=(theirs, dict(os.environ)), daemon=True)
    process.start()
    theirs.close()
    try:
        ours.send_bytes(pickle.dumps(max(0.0, clock.left) * (1 - MARGIN)))
        ours.send_bytes(packed)
        if not ours.poll(max(0.0, clock.left)):
            return Examined(reasons=(Reason.OUT_OF_TIME,))
        found: Examined = pickle.loads(ours.recv_bytes())
        return found
    finally:
        ours.close()
        process.kill()
        process.join()


def _serve(pipe: Connection, environment: Mapping[str, str]) -> None:
    """The life of the process: one errand. It ends without an answer where the errand fails, and its parent refuses."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what Ctrl-C means
    os.environ.clear()
    os.environ.update(environment)
    torch.set_num_threads(1)
    with contextlib.suppress(EOFError, OSError):
        clock = Clock(pickle.loads(pipe.recv_bytes()))
        errand: Errand = pickle.loads(pipe.recv_bytes())
        pipe.send_bytes(pickle.dumps(_told(errand, clock)))


def _told(errand: Errand, clock: Clock) -> Examined:
    """What was found, or that the errand failed: nothing is printed, since what a child prints may be sent on."""
    try:
        return examine(errand, clock.left)
    except Exception as error:  # noqa: BLE001 # whatever it is, the update must not leave
        return failed(error)


def failed(error: BaseException) -> Examined:
    """The guard's own failure, which is a reason to refuse."""
    return Examined(reasons=(Reason.FAULT,), fault=f"{type(error).__name__}: {error}")
