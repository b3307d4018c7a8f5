"""The curious client: its super-client beside a bare loop, and its memory beside the number of local steps."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from bench import bare, cases
from bench.timing import interleaved, working_mib
from fedglass.attack.labels.given import OracleLabels
from fedglass.attack.solvers.adam import REPORTS
from fedglass.core.types import Training
from fedglass.recipes.curious_client import curious_client_published


def measure() -> list[tuple[str, str, str]]:
    """Rows of (what, measured, bar)."""
    seen, _ = cases.peers(2, 8, Training(0.003, epochs=3))
    run = partial(curious_client_published(labels=OracleLabels(), iterations=REPORTS).run, seen, 0)
    own, plain, ratio = interleaved(run, bare.super_client_steps(seen), 1)
    times = f"{ratio:.3f} x ({1000 * own:.1f} ms / {1000 * plain:.1f} ms)"
    few, many = (working_mib(partial(prepared, steps), rounds=2) for steps in (3, 12))
    return [
        ("curious_lenet, 16 images, 3 steps: super-client beside a bare loop", times, "at most 1.10 x"),
        ("the same, peak memory of 12 steps beside 3", f"{many / few:.2f} x ({many:.0f} / {few:.0f} MiB)", "flat"),
    ]


def prepared(steps: int) -> Callable[[], object]:
    """Two iterations of a simulation of that many steps, with room for the graphs of three of them."""
    seen, _ = cases.peers(2, 8, Training(0.003, epochs=steps))
    return partial(curious_client_published(labels=OracleLabels(), iterations=2, budget_mib=160.0).run, seen, 0)
