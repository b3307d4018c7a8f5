"""The attacks' loops beside bare ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice

from bench import bare, cases
from bench.timing import interleaved, working_mib
from fedglass.attack.attack import Attack
from fedglass.attack.labels.given import OracleLabels
from fedglass.attack.solvers.adam import REPORTS
from fedglass.core.types import Observation, Training
from fedglass.recipes.coarse_to_fine import coarse_to_fine_published
from fedglass.recipes.inverting_gradients import inverting_gradients_published


def inverting(iterations: int) -> Attack:
    return inverting_gradients_published(labels=OracleLabels(), iterations=iterations)


def fine(iterations: int) -> Attack:
    whole = coarse_to_fine_published(labels=OracleLabels(), iterations=iterations)
    return replace(whole, stages=whole.stages[1:])


@dataclass(frozen=True)
class Setting:
    """Network, images, iterations in a turn, the ratio demanded, and the two loops."""

    network: str
    n: int
    block: int
    bar: float
    attack: Callable[[int], Attack] = inverting
    bare: Callable[[Observation], Iterator[object]] = bare.steps

    def observation(self) -> Observation:
        return cases.colour(self.n, Training(lr=0.1), self.network)[0]


SETTINGS = (
    Setting("cifar_cnn", 10, 2, 1.05),
    Setting("lenet", 1, 20, 1.10),
    Setting("resnet18", 1, 1, 1.05),
    Setting("resnet18", 1, 1, 1.05, fine, bare.fine_steps),
)


def ours(setting: Setting, iterations: int) -> Callable[[], object]:
    return partial(setting.attack(iterations).run, setting.observation())


def theirs(setting: Setting, iterations: int) -> Callable[[], object]:
    return partial(_bare_steps, setting, setting.observation(), iterations)


def _bare_steps(setting: Setting, seen: Observation, iterations: int) -> None:
    for _ in islice(setting.bare(seen), iterations):
        pass


def measure() -> list[tuple[str, str, str]]:
    """Rows of (what, measured, bar)."""
    rows = []
    for setting in SETTINGS:
        seen = setting.observation()
        run = partial(setting.attack(setting.block * REPORTS).run, seen, 0)
        own, plain, ratio = interleaved(run, setting.bare(seen), setting.block)
        who = f"{setting.network}, {setting.n} image(s), {setting.attack.__name__}"
        times = f"{ratio:.3f} x ({1000 * own:.2f} ms / {1000 * plain:.2f} ms)"
        rows.append((f"{who}: attack iteration beside a bare loop", times, f"at most {setting.bar:.2f} x"))
        memory = [working_mib(partial(prepare, setting, 5)) for prepare in (ours, theirs)]
        share = f"{memory[0] / memory[1]:.2f} x ({memory[0]:.0f} / {memory[1]:.0f} MiB beyond imports and data)"
        rows.append((f"{who}: peak memory", share, "at most 1.10 x"))
    return rows
