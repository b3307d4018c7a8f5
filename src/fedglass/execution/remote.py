"""The run of jobs on a cluster: what a cluster must offer, and how jobs are sent, sent again and returned once."""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from functools import cached_property
from typing import Any, Protocol

import torch

from fedglass import __version__
from fedglass.attack.parts import Progress, no_progress
from fedglass.core.errors import UsageError
from fedglass.core.identity import digest
from fedglass.execution.executor import Callbacks, FailedJob, Job, JobWork, Result, Results, from_bytes, to_bytes
from fedglass.execution.machine import use_worker_arithmetic


class WorkerLost(Exception):
    """The process or the machine of a task is gone; elsewhere the same task may succeed."""


class Cluster(Protocol):
    """Takes tasks and returns their results; a handle names a task until it is forgotten or cancelled."""

    def slots(self) -> int:
        """Return how many tasks the cluster takes at a time."""
        ...

    def submit(self, function: Callable[[Any], Any], task: Any, key: str) -> Any:
        """Have a worker call `function(task)`, and return a handle. Tasks of one key have the same result."""
        ...

    def ended(self, handles: Sequence[Any]) -> Sequence[Any]:
        """Return the handles that have ended; wait a moment for the first of them, and perhaps return none."""
        ...

    def result(self, handle: Any) -> Any:
        """Return the result of a task that has ended, or `FailedJob` with its own error; raise `WorkerLost`."""
        ...

    def forget(self, handle: Any) -> None:
        """Remove the files of a task that has ended: its result has been saved."""
        ...

    def cancel(self, handle: Any) -> None:
        """End a task that is no longer needed."""
        ...


ATTEMPTS = 4
"""Times that a job is sent: one that is too large for every machine must not be sent for ever."""
ENVIRONMENT_PREFIX = "FEDGLASS_"
"""Environment variables with names that begin so are passed to workers on other machines."""


Task = tuple[bytes, Sequence[str], str, Mapping[str, str], Mapping[str, str]]
"""A job on its way, and the settings that its worker needs before it unpacks the job.

They are the folders of modules, searched after those of the worker; the current folder, for relative file names, where
the worker has that folder; environment variables; and versions.
"""


def run_task(task: Task) -> bytes | str:
    """Run a task in the process of a worker; return the result as bytes, or the reason that it cannot be run there."""
    raw, path, folder, environment, versions = task
    if versions != _versions():
        return f"a worker has {_versions_text(_versions())}, this process {_versions_text(versions)}"
    sys.path += [place for place in path if place not in sys.path]
    with contextlib.suppress(OSError):
        os.chdir(folder)
    for name in [name for name in os.environ if name.startswith(ENVIRONMENT_PREFIX)]:
        del os.environ[name]
    os.environ.update(environment)
    use_worker_arithmetic()
    try:
        work, job = from_bytes(raw)
    except (ImportError, AttributeError) as error:
        return f"a worker cannot load the case ({error})"
    return to_bytes(work(job, no_progress))


def run_on_cluster(
    cluster: Cluster, work: JobWork[Job, Result], jobs: Sequence[Job], callbacks: Callbacks[Job]
) -> Results[Job, Result]:
    """Yield each job with its result, in the order in which the jobs end."""
    waiting = deque((job, 0) for job in jobs)  # each with the number of workers that were lost with it
    running: dict[Any, tuple[Job, int]] = {}

    def send() -> None:
        while waiting and len(running) < cluster.slots():
            job, crashes = waiting.popleft()
            if not crashes:
                callbacks.started(job)
            running[cluster.submit(run_task, *_task(work, job))] = job, crashes

    try:
        send()
        while running:
            for handle in cluster.ended(list(running)):
                job, crashes = running.pop(handle)
                try:
                    result = _result(cluster, handle)
                except WorkerLost as error:
                    if crashes + 1 < ATTEMPTS:
                        cluster.forget(handle)
                        waiting.append((job, crashes + 1))  # last: the cause of the loss may be over by then
                        send()
                        continue
                    result = FailedJob(
                        f"{ATTEMPTS} workers of the cluster were lost with this case, the last one so: {error}. Use "
                        "smaller batches or workers with more memory, then run the same command again."
                    )
                send()
                yield job, result
                # Only now: a caller that was killed before has not saved the result.
                cluster.forget(handle)
    finally:
        for handle in running:
            cluster.cancel(handle)


def _result(cluster: Cluster, handle: Any) -> Any:
    """Return the result of the job, or `FailedJob`; raise `WorkerLost` if its worker is gone."""
    answer: bytes | str | FailedJob = cluster.result(handle)
    if isinstance(answer, FailedJob):
        return FailedJob(
            f"The task failed on the cluster ({answer.reason}); run the same command again, or leave this case out."
        )
    if isinstance(answer, str):
        raise UsageError(f"On the cluster {answer}: install there what is installed here.")
    return from_bytes(answer)


def _task(work: Callable[[Job, Progress], Any], job: Job) -> tuple[Task, str]:
    """Return the task of a job, and a digest of what decides its result: the key of the job if it has one, else all."""
    variables = {name: value for name, value in os.environ.items() if name.startswith(ENVIRONMENT_PREFIX)}
    folder, versions, raw = os.getcwd(), _versions(), to_bytes((work, job))
    key = getattr(job, "key", None)
    content = key if isinstance(key, str) else hashlib.sha256(raw).hexdigest()
    name = digest(work.__module__, work.__qualname__, _versions_text(versions), content)[:32]
    return (raw, [place or folder for place in sys.path], folder, variables, versions), name


def _versions() -> dict[str, str]:
    """Return the versions that all workers must share."""
    return {"fedglass": __version__, "torch": str(torch.__version__), "python": "{}.{}".format(*sys.version_info)}


def _versions_text(versions: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in versions.items())


class ClusterExecutor(ExitStack):
    """An executor that connects to its cluster at the first run, and stays connected until its context ends."""

    def __init__(self, connect: Callable[[], AbstractContextManager[Cluster]]) -> None:
        super().__init__()
        self.connect = connect

    @cached_property
    def cluster(self) -> Cluster:
        return self.enter_context(self.connect())

    def slots(self) -> int:
        """Return how many jobs run at a time."""
        return self.cluster.slots()

    def run(self, work: JobWork[Job, Result], jobs: Sequence[Job], callbacks: Callbacks[Job]) -> Results[Job, Result]:
        """Yield each job with its result, in the order in which the jobs end."""
        if jobs:
            to_bytes((work, jobs[0]))  # a job that cannot be sent is refused before the cluster is asked
            yield from run_on_cluster(self.cluster, work, jobs, callbacks)


def last_line(error: BaseException, text: str | None = None) -> str:
    """Return the last line of an error's text, of a traceback say, which tells what was raised."""
    return ((str(error) if text is None else text).strip().splitlines() or [type(error).__name__])[-1]
