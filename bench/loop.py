"""The attack's loop beside a bare one."""

from __future__ import annotations

from functools import partial
from itertools import islice

from bench import bare, cases
from bench.timing import interleaved, peak_mib
from fedglass.attack.labels.given import OracleLabels
from fedglass.attack.solvers.adam import REPORTS
from fedglass.core.types import Training
from fedglass.recipes.inverting_gradients import inverting_gradients_published

SETTINGS = (("cifar_cnn", 10, 2, 1.05), ("lenet", 1, 20, 1.10), ("resnet18", 1, 1, 1.05))
"""Network, images, iterations in a turn, and the ratio demanded."""


def ours(network: str, n: int, iterations: int) -> None:
    observation, _ = cases.colour(n, Training(lr=0.1), network)
    inverting_gradients_published(labels=OracleLabels(), iterations=iterations).run(observation)


def theirs(network: str, n: int, iterations: int) -> None:
    observation, _ = cases.colour(n, Training(lr=0.1), network)
    for _ in islice(bare.steps(observation), iterations):
        pass


def measure() -> list[tuple[str, str, str]]:
    """Rows of (what, measured, bar)."""
    rows = []
    for network, n, block, bar in SETTINGS:
        observation, _ = cases.colour(n, Training(lr=0.1), network)
        attack = inverting_gradients_published(labels=OracleLabels(), iterations=block * REPORTS)
        run = partial(attack.run, observation, 0)
        own, plain, ratio = interleaved(run, bare.steps(observation), block)
        what = f"{network}, {n} image(s): attack iteration beside a bare loop"
        rows.append((what, f"{ratio:.3f} x ({1000 * own:.2f} ms / {1000 * plain:.2f} ms)", f"at most {bar:.2f} x"))
        memory = [peak_mib(partial(work, network, n, 5)) for work in (ours, theirs)]
        share = memory[0] / memory[1]
        rows.append(
            (
                f"{network}, {n} image(s): peak memory",
                f"{share:.2f} x ({memory[0]:.0f} / {memory[1]:.0f} MiB)",
                "at most 1.10 x",
            )
        )
    return rows
