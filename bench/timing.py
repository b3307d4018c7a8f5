"""Timing of alternatives side by side, in one process, so that both see the same machine."""

from __future__ import annotations

import multiprocessing
import resource
import time
from collections.abc import Callable, Mapping


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


def peak_mib(work: Callable[[], object]) -> float:
    """Peak resident memory of a fresh process that does the work."""
    context = multiprocessing.get_context("spawn")
    with context.Pool(1) as pool:
        return pool.apply(_measured, (work,))


def _measured(work: Callable[[], object]) -> float:
    work()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
