"""What runs the cases of an audit, and what it owes to its caller."""

from __future__ import annotations

import io
import pickle
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from fedglass.attack.parts import Progress
from fedglass.core.errors import FedglassError, UsageError
from fedglass.execution.machine import one_thread

# What may go wrong in one case without ending the audit.


FAILURES = (FedglassError, RuntimeError, MemoryError)
"""Anything else is a fault of fedglass."""


def in_words(error: BaseException) -> str:
    """A failure as a record or a refusal tells it.

    >>> in_words(MemoryError("no room")), in_words(UsageError("lr must be positive."))
    ('MemoryError: no room', 'lr must be positive.')
    """
    return str(error) if isinstance(error, FedglassError) else f"{type(error).__name__}: {error}"


@contextmanager
def blaming(where: str) -> Iterator[None]:
    """What would make a case fail makes the plan wrong."""
    try:
        yield
    except FAILURES as error:
        raise UsageError(f"{where}: {in_words(error)}") from error


EVERY = 0.2
"""Seconds between two words of progress."""

Job = TypeVar("Job")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Lost:
    """In place of a result: why there is none."""

    why: str


@dataclass(frozen=True, eq=False)
class Watch(Generic[Job]):
    """Hears which job has started, and how many iterations of how many it has done."""

    started: Callable[[Job], None]
    moved: Callable[[Job, int, int], None]


class Executor(Protocol):
    """Runs a function on jobs, somewhere. What is needed of every executor:

    - Each job comes back exactly once, the same object that was given, with its result, in the order in which the
      jobs end. The caller keeps what it was handed, so results are handed over as they come, not at the end.
    - A job whose process or machine is gone comes back with `Lost` and the reason, and takes no other job with it. On
      this machine it is not tried again: the next run of the audit does that. On a cluster, where machines come and
      go, it may be tried a few times before it is lost.
    - Results do not depend on the executor. `work` runs on one thread of torch, a job sees nothing of the jobs
      before it, and the environment variables are those of the caller; on other machines those that begin with
      `FEDGLASS_`, since the rest is the other machine's own business.
    - `work` is a function of a module, found by its name on the other side. Jobs and results travel as pickles; a
      job that can not be pickled is refused with a `UsageError`. An executor that stays in the process need not.
    - `work` turns the failures that it knows into results. What else it raises is a fault: it may end the run, or
      lose that job.
    - All calls of `watch` come from the thread that iterates. `started` comes before the job's other news; `moved`
      may come seldom (see `Throttled`), or never.
    - Nothing runs before the iterator is asked, and nothing is left running when it is closed or its process dies:
      closing is how Ctrl-C ends an audit.
    """

    def run(
        self, work: Callable[[Job, Progress], Result], jobs: Sequence[Job], watch: Watch[Job]
    ) -> Iterator[tuple[Job, Result | Lost]]:
        """Jobs with their results, in the order in which they end."""
        ...


@runtime_checkable
class Ready(Executor, Protocol):
    """An executor whose workers wait for the next run."""

    def slots(self) -> int:
        """How many jobs run at a time."""
        ...


@runtime_checkable
class Lasting(Protocol):
    """An executor that can keep its workers from one run to the next, for many runs of short jobs."""

    def kept(self) -> AbstractContextManager[Ready]:
        """The same executor with workers that end with the context; they are started when they are first needed."""
        ...


def kept(executor: Executor) -> AbstractContextManager[Executor]:
    """The executor with workers that stay for the context, where it can keep them."""
    return executor.kept() if isinstance(executor, Lasting) else nullcontext(executor)


class Throttled:
    """A progress callback that speaks at most every so often, and at the end."""

    def __init__(self, say: Callable[[int, int], None]) -> None:
        self.say, self.last = say, -EVERY

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        if done >= total or now - self.last >= EVERY:
            self.last = now
            self.say(done, total)


# The executor that needs nothing.


@dataclass(frozen=True)
class InProcess:
    """Runs the jobs here, one after another. A job that kills its process ends the run."""

    def run(
        self, work: Callable[[Job, Progress], Result], jobs: Sequence[Job], watch: Watch[Job]
    ) -> Iterator[tuple[Job, Result | Lost]]:
        """Jobs with their results, in the order in which they were given."""
        for job in jobs:
            watch.started(job)

            def say(done: int, total: int, job: Job = job) -> None:
                watch.moved(job, done, total)

            with one_thread():
                result = work(job, Throttled(say))
            yield job, result


# Jobs and results as bytes.


class Unsendable(UsageError):
    """A job that only the process that made it can do."""


def packed(value: object) -> bytes:
    """The value as bytes, or a sentence on why it has none."""
    buffer = io.BytesIO()
    try:
        _Packer(buffer, protocol=pickle.HIGHEST_PROTOCOL).dump(value)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise Unsendable(
            f"The case can not be sent to a worker process ({error}): define the model and the parts in an "
            "importable module, or set workers to 1."
        ) from error
    return buffer.getvalue()


def unpacked(raw: bytes) -> Any:
    """What was packed, by ourselves: bytes of others are not to be trusted with this."""
    return pickle.loads(raw)


class _Packer(pickle.Pickler):
    """Plain tensors as their entries: torch would write an archive for each of the hundreds in a round's messages."""

    def reducer_override(self, value: Any) -> Any:
        if type(value) is Tensor and _is_plain(value):
            return _tensor, (value.numpy().tobytes(), value.dtype, tuple(value.shape))
        return NotImplemented


def _is_plain(tensor: Tensor) -> bool:
    """Whether its entries are all there is to it; one that shares them or has a history is left to torch."""
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
    """Into memory of torch's own, which is aligned alike in every process: the last bits of a product depend on it."""
    found = torch.empty(shape, dtype=kind)
    flat = found.view(-1).numpy()
    flat[:] = np.frombuffer(raw, dtype=flat.dtype)
    return found
