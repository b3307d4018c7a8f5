"""What a case costs beside its attack, by executor: empty jobs of the size of a case, one run after another."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Iterator
from dataclasses import dataclass

from fedglass.attack.parts import Progress
from fedglass.execution.executor import Callbacks, PooledExecutor
from fedglass.execution.processes import Processes
from fedglass.execution.ray import OnRay

CASES, WORKERS = 400, 2
PAYLOAD = 300_000
"""Bytes of a case: a LeNet's weights and update, and what is known of them."""


@dataclass(frozen=True)
class Empty:
    """A case without an attack."""

    number: int
    content: bytes


def nothing(job: Empty, progress: Progress) -> bytes:
    """A result of the size of a record with its evidence."""
    return job.content[:20_000]


def measure() -> list[tuple[str, str, str]]:
    return [row for name, executor in available() for row in rows(name, executor)]


def available() -> Iterator[tuple[str, Processes | OnRay]]:
    yield f"{WORKERS} processes", Processes(WORKERS)
    if importlib.util.find_spec("ray") is not None:
        yield f"Ray, {WORKERS} workers", OnRay(WORKERS)


def rows(name: str, executor: Processes | OnRay) -> list[tuple[str, str, str]]:
    start = time.perf_counter()
    with executor.persistent() as ready:
        played(ready, WORKERS)
        first = time.perf_counter() - start
        seconds = min(played(ready, CASES) for _ in range(3))
        end = time.perf_counter()
    return [
        (f"{name}: an empty case", f"{1000 * seconds / CASES:.2f} ms", ""),
        (f"{name}: until the first is back", f"{first:.1f} s", ""),
        (f"{name}: end of the workers", f"{time.perf_counter() - end:.1f} s", ""),
    ]


def played(ready: PooledExecutor, count: int) -> float:
    jobs = [Empty(i, bytes(PAYLOAD)) for i in range(count)]
    start = time.perf_counter()
    back = [job for job, result in ready.run(nothing, jobs, Callbacks(lambda job: None, lambda *way: None))]
    assert len(back) == count, "every case is played"
    return time.perf_counter() - start
