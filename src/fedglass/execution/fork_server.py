"""The start of worker processes, their environment variables, and the cores that they may use.

No torch is imported here, so that `start_fork_server` can be called first of all.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from multiprocessing import forkserver, resource_tracker, spawn
from typing import TYPE_CHECKING

from fedglass.core.errors import UsageError

if TYPE_CHECKING:
    from multiprocessing.context import ForkServerContext, SpawnContext
    from multiprocessing.process import BaseProcess

PRELOADED = ("fedglass.recipes", "fedglass.models.catalogue")
"""Modules that every kind of job needs."""


def start_method() -> ForkServerContext | SpawnContext:
    """Return how workers are started: as forks of a server that has imported what they need, where that is safe.

    Never as forks of this process: a copy of a process in which torch has run threads may hang. On macOS, system
    libraries start threads of their own when they are loaded, in the server too.
    """
    return multiprocessing.get_context("forkserver") if _has_fork_server() else multiprocessing.get_context("spawn")


def start_fork_server(module: str) -> None:
    """Start the fork server, which imports the module of the work; do nothing where it runs already.

    Called early, its imports overlap with those of this process. The server ends with this process.
    """
    refuse_while_loading()
    if not _has_fork_server():
        return
    multiprocessing.set_forkserver_preload([module, *PRELOADED])
    # The tracker first: when it is started, it unblocks the signals that it found blocked.
    resource_tracker.ensure_running()
    # Python 3.11 does not tell its fork server where modules are, and lets it look into the current folder first.
    paths = {"PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path), "PYTHONSAFEPATH": "1"}
    with _interrupts_blocked(), environment(paths):
        forkserver.ensure_running()


def refuse_while_loading() -> None:
    """Refuse to start workers while a worker still loads the script that started it: that script has no main guard."""
    try:
        spawn.get_preparation_data("worker")
    except RuntimeError as error:
        raise UsageError(
            "The script starts workers whenever it is loaded, and every worker loads it: keep what it does under "
            '`if __name__ == "__main__":`, or set workers to 1.'
        ) from error


def end_with_parent() -> None:
    """End this worker as soon as the process that started it ends, however that ends and whatever runs here."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_exit_after, args=(parent,), daemon=True).start()


def _exit_after(parent: BaseProcess) -> None:
    parent.join()
    os._exit(1)


def _has_fork_server() -> bool:
    return sys.platform != "darwin" and "forkserver" in multiprocessing.get_all_start_methods()


@contextlib.contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """Keep Ctrl-C from processes that are started here, even while they import: this process decides what it means."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set these variables for this process and those that it starts, until the context ends.

    >>> with environment({"FEDGLASS_MOOD": "calm"}):
    ...     os.environ["FEDGLASS_MOOD"]
    'calm'
    >>> "FEDGLASS_MOOD" in os.environ
    False
    """
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
