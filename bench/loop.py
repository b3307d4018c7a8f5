"""The attack's loop beside a bare one."""

from __future__ import annotations

from functools import partial

from bench import bare, cases
from bench.timing import peak_mib, side_by_side
from fedglass.attack.labels.given import OracleLabels
from fedglass.core.types import Training
from fedglass.recipes.inverting_gradients import inverting_gradients_published


def ours(network: str, n: int, iterations: int) -> None:
    observation, _ = cases.colour(n, Training(lr=0.1), network)
    inverting_gradients_published(labels=OracleLabels(), iterations=iterations).run(observation)


def theirs(network: str, n: int, iterations: int) -> None:
    observation, _ = cases.colour(n, Training(lr=0.1), network)
    bare.invert(observation, iterations)


def measure() -> list[tuple[str, str, str]]:
    """Rows of (what, measured, bar)."""
    rows = []
    for network, n, iterations, rounds, bar in (("cifar_cnn", 10, 50, 4, 1.05), ("lenet", 1, 500, 6, 1.10)):
        observation, _ = cases.colour(n, Training(lr=0.1), network)
        attack = inverting_gradients_published(labels=OracleLabels(), iterations=iterations)
        runs = {"ours": partial(attack.run, observation), "bare": partial(bare.invert, observation, iterations)}
        seconds = side_by_side(runs, rounds)
        each = {name: 1000 * s / iterations for name, s in seconds.items()}
        ratio = each["ours"] / each["bare"]
        what = f"{network}, {n} image(s): attack iteration beside a bare loop"
        rows.append((what, f"{ratio:.3f} x ({each['ours']:.2f} ms / {each['bare']:.2f} ms)", f"at most {bar:.2f} x"))
        memory = [peak_mib(partial(work, network, n, 5)) for work in (ours, theirs)]
        rows.append((f"{network}, {n} image(s): peak memory", f"{memory[0]:.0f} MiB / {memory[1]:.0f} MiB", ""))
    return rows
