"""Executors run the cases of an audit: their contract, the one that stays in this process, and jobs as bytes.

Simulated clients train in the same workers.
"""

from __future__ import annotations

import copyreg
import io
import pickle
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from fedglass.attack.parts import Progress
from fedglass.core.errors import FedglassError, UsageError
from fedglass.execution.machine import repeatable_arithmetic
from fedglass.federation.client import CPU, Client, TrainClients, TrainRequest, train_sequentially
from fedglass.federation.transcript import Message

FAILURES = (FedglassError, RuntimeError, MemoryError)
"""Errors that fail one case without ending the audit; anything else is a fault of fedglass."""


def failure_text(error: BaseException) -> str:
    """Return a failure as text for a record or a refusal.

    >>> failure_text(MemoryError("no room")), failure_text(UsageError("lr must be positive."))
    ('MemoryError: no room', 'lr must be positive.')
    """
    return str(error) if isinstance(error, FedglassError) else f"{type(error).__name__}: {error}"


@contextmanager
def as_usage_error(where: str) -> Iterator[None]:
    """Turn an error that would fail a case into an error of the plan."""
    try:
        yield
    except FAILURES as error:
        raise UsageError(f"{where}: {failure_text(error)}") from error


REPORT_SECONDS = 0.2
"""Seconds between two reports of progress."""

Job = TypeVar("Job")
Result = TypeVar("Result")


@dataclass(frozen=True)
class FailedJob:
    """The reason that a job has no result."""

    reason: str


@dataclass(frozen=True, eq=False)
class Callbacks(Generic[Job]):
    """Functions that are called when a job starts, and with the iterations that it has done, of how many."""

    started: Callable[[Job], None]
    moved: Callable[[Job, int, int], None]


JobWork = Callable[[Job, Progress], Result]
"""A function of a module that turns a job into its result; workers find it by its name."""
Results = Iterator[tuple[Job, Result | FailedJob]]
"""Each job with its result, in the order in which the jobs end."""


class Executor(Protocol):
    """Runs a function on jobs, somewhere. Every executor keeps these rules:

    - Each job is returned exactly once, as the same object, with its result, in the order in which the jobs end.
      The caller writes results down as they come, so they are not held back until the end.
    - A job of a process or machine that is gone is returned with `FailedJob` and the reason; other jobs go on. On this
      machine the job is not tried again: the next run of the audit does that. On a cluster, where machines come and
      go, it may be tried a few times first.
    - Results do not depend on the executor. `work` runs on one thread of torch. A job sees nothing of earlier jobs.
      The environment variables are those of the caller; on other machines only those that begin with `FEDGLASS_`,
      since the other variables belong to that machine.
    - `work` is a function of a module, found by its name on the other side. Jobs and results travel as pickles; a
      job that cannot be pickled is refused with a `UsageError`, except by an executor that stays in this process.
    - `work` turns the failures that it knows into results. Any other exception is a fault: it may end the run, or
      fail that job.
    - All calls of `callbacks` come from the thread that iterates. `started` comes before `moved` of the same job;
      `moved` may come seldom (see `throttled`), or never.
    - Nothing runs before the iterator is asked, and nothing is left running when it is closed or its process dies:
      closing is how Ctrl-C ends an audit.
    """

    def run(self, work: JobWork[Job, Result], jobs: Sequence[Job], callbacks: Callbacks[Job]) -> Results[Job, Result]:
        """Yield each job with its result, in the order in which the jobs end."""
        ...


@runtime_checkable
class PooledExecutor(Executor, Protocol):
    """An executor with a pool of workers that wait for the next run."""

    def slots(self) -> int:
        """Return how many jobs run at a time."""
        ...


def persistent(executor: Executor) -> AbstractContextManager[Executor]:
    """Return the executor with workers that stay for the context, from one run to the next.

    An executor that can keep its workers has a method `persistent()`, which returns a context of a `PooledExecutor`:
    its workers start when they are first needed and end with the context. Any other executor is returned as it is.
    """
    keep: Callable[[], AbstractContextManager[Executor]] | None = getattr(executor, "persistent", None)
    return nullcontext(executor) if keep is None else keep()


def throttled(say: Callable[[int, int], None]) -> Progress:
    """Return a progress callback that reports at most every `REPORT_SECONDS`, and at the end."""
    last = -REPORT_SECONDS

    def report(done: int, total: int) -> None:
        nonlocal last
        now = time.monotonic()
        if done >= total or now - last >= REPORT_SECONDS:
            last = now
            say(done, total)

    return report


@dataclass(frozen=True)
class InProcess:
    """Runs the jobs in this process, one after another. A job that kills its process ends the run."""

    def run(self, work: JobWork[Job, Result], jobs: Sequence[Job], callbacks: Callbacks[Job]) -> Results[Job, Result]:
        """Yield each job with its result, in the given order."""
        for job in jobs:
            callbacks.started(job)
            with repeatable_arithmetic():
                result = work(job, throttled(partial(callbacks.moved, job)))
            yield job, result


class UnsendableJob(UsageError):
    """A job that only the process that made it can run."""


def to_bytes(value: object) -> bytes:
    """Return the value as bytes; one that cannot be pickled is refused."""
    buffer = io.BytesIO()
    pickler = pickle.Pickler(buffer, protocol=pickle.HIGHEST_PROTOCOL)
    pickler.dispatch_table = {**copyreg.dispatch_table, Tensor: _reduced}
    try:
        pickler.dump(value)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise UnsendableJob(
            f"The case cannot be sent to a worker process ({error}): define the model and the parts in an "
            "importable module, or set workers to 1."
        ) from error
    return buffer.getvalue()


def from_bytes(raw: bytes) -> Any:
    """Return the value of our own `to_bytes`; never call this on bytes of others, which could run code."""
    return pickle.loads(raw)


def _reduced(value: Tensor) -> Any:
    """Return a plain tensor as raw bytes: torch would write an archive for each of hundreds of tensors in a round."""
    if _is_plain(value):
        return _tensor, (value.numpy().tobytes(), value.dtype, tuple(value.shape))
    return value.__reduce_ex__(pickle.HIGHEST_PROTOCOL)  # type: ignore[no-untyped-call] # of torch


def _is_plain(tensor: Tensor) -> bool:
    """Return whether the entries say all about a tensor: it shares no memory and has no history."""
    return (
        tensor.device.type == "cpu"
        and tensor.layout is torch.strided
        and tensor.dtype in (torch.float32, torch.float64, torch.int64)
        and not tensor.requires_grad
        and tensor.is_contiguous()
        and tensor.untyped_storage().nbytes() == tensor.nbytes
        and not (tensor.is_neg() or vars(tensor))
    )


def _tensor(raw: bytes, kind: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    """Copy into memory of torch, which is aligned alike in every process: the last bits of a product depend on it."""
    tensor = torch.empty(shape, dtype=kind)
    flat = tensor.view(-1).numpy()
    flat[:] = np.frombuffer(raw, dtype=flat.dtype)
    return tensor


# The training of simulated clients in the workers that also run the cases of an audit.


GROUPS_PER_WORKER = 2
"""Groups of clients for each worker: several, since some clients train longer than others."""

ClientGroup = tuple[Sequence[Client], TrainRequest]
"""Clients that train in one process: the model is sent once for all of them."""
NO_CALLBACKS: Callbacks[ClientGroup] = Callbacks(lambda group: None, lambda group, done, total: None)


def client_trainer(executor: Executor, device: torch.device = CPU) -> TrainClients:
    """Return a function that trains clients on a device.

    It does so in the workers of a pool, and in this process without one: a queue is longer than a round.
    """
    trainer = partial(train_in_workers, executor) if isinstance(executor, PooledExecutor) else train_sequentially
    if device == CPU:
        return trainer
    return lambda clients, request: trainer(clients, replace(request, device=device))


def train_in_workers(executor: PooledExecutor, clients: Sequence[Client], call: TrainRequest) -> list[Message]:
    """Train clients in the workers of an executor, and in this process where no worker could.

    That covers parts that cannot be sent, workers that were killed, and clients that fail: their error is then raised
    here, as it is without workers.
    """
    groups = [(members, call) for members in _split(clients, GROUPS_PER_WORKER * executor.slots())]
    if len(groups) <= 1:
        return train_sequentially(clients, call)
    messages_by_group: dict[int, list[Message]] = {}
    try:
        for group, messages in executor.run(train_group, groups, NO_CALLBACKS):
            if messages is not None and not isinstance(messages, FailedJob):
                messages_by_group[id(group)] = messages
    except UnsendableJob:
        return train_sequentially(clients, call)
    return [message for group in groups for message in (messages_by_group.get(id(group)) or train_sequentially(*group))]


def train_group(group: ClientGroup, progress: Progress) -> list[Message] | None:
    """Return the messages of these clients, or None if one of them fails."""
    try:
        return train_sequentially(*group)
    except FAILURES:
        return None


def _split(clients: Sequence[Client], groups: int) -> list[list[Client]]:
    """Split the clients, in their order, into groups of nearly equal size, none of them empty."""
    count = min(groups, len(clients))
    bounds = pairwise(round(i * len(clients) / count) for i in range(count + 1))
    compact = list(map(_without_views, clients))
    return [compact[first:last] for first, last in bounds]


def _without_views(client: Client) -> Client:
    """Return the client with examples of their own memory: a view would be sent with all of its larger tensor."""
    if all(t.untyped_storage().nbytes() == t.nbytes for t in (client.images, client.labels)):
        return client
    return replace(client, images=client.images.clone(), labels=client.labels.clone())
