"""Runs jobs on a cluster of others: tasks are sent, lost ones are sent again, and each job comes back once."""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol

import torch

from fedglass import __version__
from fedglass.attack.parts import Progress, no_progress
from fedglass.core.errors import UsageError
from fedglass.core.identity import digest
from fedglass.execution.executor import Job, Lost, Ready, Result, Watch, packed, unpacked

# What a cluster does for an executor, whatever others call it: it takes a task and gives back what came of it.


class Crashed(Exception):
    """The process or the machine of a task is gone; elsewhere the same task may succeed."""


class Failed(Exception):
    """A task ended with an error of its own, and would do so again."""


class Cluster(Protocol):
    """Tasks are handed in, and known by their handles until they have been answered or cancelled."""

    def slots(self) -> int:
        """How many tasks should be in its hands at a time."""
        ...

    def submit(self, function: Callable[[Any], Any], task: Any, key: str) -> Any:
        """Have `function(task)` called by some worker. Tasks of one key have the same result."""
        ...

    def ended(self, handles: Sequence[Any]) -> Sequence[Any]:
        """Those that have ended; waits a moment for the first of them, and may return none."""
        ...

    def answer(self, handle: Any) -> Any:
        """What came of a task that has ended; raises `Crashed` or `Failed`."""
        ...

    def forget(self, handle: Any) -> None:
        """Clear away what is left of a task that has ended: its answer is in safe hands."""
        ...

    def cancel(self, handle: Any) -> None:
        """End a task that nobody waits for any more."""
        ...


ATTEMPTS = 4
"""How often a job is sent before it is given up: one that is too large for every machine must not go round for ever."""
OURS = "FEDGLASS_"
"""What the names of those environment variables begin with that workers on other machines are told."""


@dataclass(frozen=True)
class Task:
    """A job on its way, and what its worker must know before it unpacks it."""

    job: bytes
    path: Sequence[str]
    """Where modules are found, after the worker's own places."""
    folder: str
    """The current one, for files that are named from there, where the worker has it."""
    environment: Mapping[str, str]
    versions: Mapping[str, str]


@dataclass(frozen=True)
class Answer:
    """What came of a task: a packed result, or why this worker can not have any."""

    result: bytes = b""
    refusal: str = ""


def perform(task: Task) -> Answer:
    """What a worker does with a task, in whatever process it runs."""
    if task.versions != _versions():
        return Answer(refusal=f"a worker has {_in_words(_versions())}, this process {_in_words(task.versions)}")
    sys.path += [place for place in task.path if place not in sys.path]
    with contextlib.suppress(OSError):
        os.chdir(task.folder)
    for name in [name for name in os.environ if name.startswith(OURS)]:
        del os.environ[name]
    os.environ.update(task.environment)
    torch.set_num_threads(1)
    try:
        work, job = unpacked(task.job)
    except (ImportError, AttributeError) as error:
        return Answer(refusal=f"a worker can not load the case ({error})")
    return Answer(packed(work(job, no_progress)))


def run_on(
    cluster: Cluster, work: Callable[[Job, Progress], Result], jobs: Sequence[Job], watch: Watch[Job]
) -> Iterator[tuple[Job, Result | Lost]]:
    """Jobs with their results, in the order in which they end."""
    waiting = deque(map(_Sending, jobs))
    running: dict[Any, _Sending[Job]] = {}

    def send() -> None:
        while waiting and len(running) < cluster.slots():
            sending = waiting.popleft()
            if not sending.crashes:
                watch.started(sending.job)
            task = _task(work, sending.job)
            running[cluster.submit(perform, task, _key(work, sending.job, task))] = sending

    try:
        send()
        while running:
            for handle in cluster.ended(list(running)):
                sending = running.pop(handle)
                found = _result(cluster, handle, sending)
                if isinstance(found, _Again):
                    cluster.forget(handle)
                    waiting.append(sending)  # behind all others: what takes workers away may be over by then
                    send()
                    continue
                send()
                yield sending.job, found
                # Only now: whoever was killed before has kept nothing of it.
                cluster.forget(handle)
    finally:
        for handle in running:
            cluster.cancel(handle)


@dataclass(eq=False)
class _Sending(Generic[Job]):
    """A job, and how often a worker was lost with it."""

    job: Job
    crashes: int = 0


class _Again:
    """In place of a result: the job is to be sent once more."""


def _result(cluster: Cluster, handle: Any, sending: _Sending[Job]) -> Any:
    """The job's result, `Lost` or `_Again`."""
    try:
        answer: Answer = cluster.answer(handle)
    except Failed as error:
        return Lost(f"The task failed on the cluster ({error}); run the same command again, or leave this case out.")
    except Crashed as error:
        sending.crashes += 1
        if sending.crashes < ATTEMPTS:
            return _Again()
        return Lost(
            f"{ATTEMPTS} workers of the cluster were lost with this case, the last one so: {error}. Use smaller "
            "batches or workers with more memory, then run the same command again."
        )
    if answer.refusal:
        raise UsageError(f"On the cluster {answer.refusal}: install there what is installed here.")
    return unpacked(answer.result)


def _task(work: Callable[[Job, Progress], Any], job: Job) -> Task:
    told = {name: value for name, value in os.environ.items() if name.startswith(OURS)}
    folder = os.getcwd()
    return Task(packed((work, job)), [place or folder for place in sys.path], folder, told, _versions())


def _versions() -> dict[str, str]:
    """What the results of all workers must have in common."""
    return {"fedglass": __version__, "torch": str(torch.__version__), "python": "{}.{}".format(*sys.version_info)}


def _in_words(versions: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in versions.items())


def _key(work: Callable[[Job, Progress], Any], job: Job, task: Task) -> str:
    """What decides the result of a job: its own key where it has one, else all of it."""
    own = getattr(job, "key", None)
    content = own if isinstance(own, str) else hashlib.sha256(task.job).hexdigest()
    return digest(work.__module__, work.__qualname__, _in_words(task.versions), content)[:32]


@dataclass(eq=False)
class Kept:
    """An executor on a cluster that is connected by the first run, and stays so."""

    connect: Callable[[], AbstractContextManager[Cluster]]
    stack: ExitStack
    connected: list[Cluster] = field(default_factory=list)

    def _cluster(self) -> Cluster:
        if not self.connected:
            self.connected.append(self.stack.enter_context(self.connect()))
        return self.connected[0]

    def slots(self) -> int:
        """How many jobs run at a time."""
        return self._cluster().slots()

    def run(
        self, work: Callable[[Job, Progress], Result], jobs: Sequence[Job], watch: Watch[Job]
    ) -> Iterator[tuple[Job, Result | Lost]]:
        """Jobs with their results, in the order in which they end."""
        if jobs:
            packed((work, jobs[0]))  # what can not be sent is said before a cluster is asked for
            yield from run_on(self._cluster(), work, jobs, watch)


@contextlib.contextmanager
def connected(connect: Callable[[], AbstractContextManager[Cluster]]) -> Iterator[Ready]:
    """Workers of a cluster for as long as the context lasts."""
    with ExitStack() as stack:
        yield Kept(connect, stack)
