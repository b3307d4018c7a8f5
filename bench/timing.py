"""Time of alternatives side by side, in one process, so that both see the same machine; memory in processes apart."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import math
import multiprocessing
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import torch

from fedglass.attack.parts import Progress
from fedglass.execution import machine

Work = TypeVar("Work", bound=Callable[[], Any])


def side_by_side(candidates: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Seconds of each candidate: the least over rounds in which they take turns, which is what the code costs
    when nothing else happens on the machine."""
    best = dict.fromkeys(candidates, float("inf"))
    for run in candidates.values():
        run()  # warm up
    for _ in range(rounds):
        for name, run in candidates.items():
            start = time.perf_counter()
            run()
            best[name] = min(best[name], time.perf_counter() - start)
    return best


def interleaved(ours: Callable[[Progress], object], theirs: Iterator[object], block: int) -> tuple[float, float, float]:
    """Seconds of one iteration of a solver's run, of one step of an iterator, and the median of their ratio.

    The two take turns of `block` iterations, by way of the solver's progress callback, so that each pair of turns
    sees the same machine. The first and the last turn, which bind and conclude, are left out.
    """
    turns: list[tuple[float, float]] = []
    began: float | None = None

    def turn(done: int, total: int) -> None:
        nonlocal began
        now = time.perf_counter()
        for _ in range(block):
            next(theirs)
        after = time.perf_counter()
        if began is not None and done < total:
            turns.append(((now - began) / block, (after - now) / block))
        began = time.perf_counter()

    ours(turn)
    return (
        statistics.median(a for a, _ in turns),
        statistics.median(b for _, b in turns),
        statistics.median(a / b for a, b in turns),
    )


def peak_mib(work: Callable[[], object]) -> float:
    """Peak resident memory of a fresh process that does the work."""
    return _in_a_process_of_its_own(_peak, work)


def working_mib(prepare: Callable[[], Callable[[], object]], rounds: int = 3) -> float:
    """Peak resident memory of the work that `prepare` returns, beyond what its process held before.

    That leaves out imports, the data and the network, which are the same for every way of doing the work. The least
    over some processes, since what the allocator keeps for itself differs from one to the next.
    """
    return min(_in_a_process_of_its_own(_beyond, prepare) for _ in range(rounds))


def _in_a_process_of_its_own(measure: Callable[[Work], float], work: Work) -> float:
    context = multiprocessing.get_context("spawn")
    with context.Pool(1) as pool:
        return pool.apply(measure, (work,))


def _peak(work: Callable[[], object]) -> float:
    torch.set_num_threads(1)
    work()
    # Not getrusage: a process that was started by a larger one reports the other's peak.
    return machine.peak_mib() or math.nan


def _beyond(prepare: Callable[[], Callable[[], object]]) -> float:
    torch.set_num_threads(1)
    work = prepare()
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)  # else the work would hide in what the preparation has freed
    machine.reset_peak()
    before = machine.peak_mib() or math.nan
    work()
    return (machine.peak_mib() or math.nan) - before
