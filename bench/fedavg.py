"""Inversion of whole local trainings: SME beside IG, simulation beside the plain training."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from bench import cases
from bench.timing import peak_mib, side_by_side
from fedglass.attack.attack import Attack
from fedglass.attack.forward.target import leaves, network_of
from fedglass.attack.forward.unroll import BUDGET_MIB
from fedglass.attack.labels.given import OracleLabels
from fedglass.core.types import Observation, Training
from fedglass.fl.local import schedule, train
from fedglass.fl.trajectory import Trajectory, TrajectoryMemory
from fedglass.recipes.dlfa import dlfa_published
from fedglass.recipes.sme import sme, sme_baseline_ig, sme_published

LONG = Training(lr=0.004, epochs=50, batch_size=10)  # 250 steps for 50 examples


def measure() -> list[tuple[str, str, str]]:
    return [*surrogate(), *simulation(), *long_simulation()]


def surrogate() -> list[tuple[str, str, str]]:
    observation, _ = cases.colour(10, Training(lr=0.004, epochs=10, batch_size=10))
    iterations = 20
    attacks: dict[str, Callable[..., Attack]] = {
        "sme": partial(sme, finish=0),
        "sme_published": sme_published,
        "ig": sme_baseline_ig,
    }
    runs = {
        name: partial(make(labels=OracleLabels(), iterations=iterations).run, observation)
        for name, make in attacks.items()
    }
    seconds = side_by_side(runs, 4)
    rows = [("cifar_cnn, 10 images: IG iteration", f"{1000 * seconds['ig'] / iterations:.1f} ms", "")]
    for name, bar in (("sme", "at most 1.05 x"), ("sme_published", "")):
        rows.append((f"cifar_cnn, 10 images: {name} beside IG", f"{seconds[name] / seconds['ig']:.3f} x", bar))
    return rows


def simulation() -> list[tuple[str, str, str]]:
    """One iteration of the simulation (there and back) beside the client training that it simulates."""
    training = Training(lr=0.004, epochs=2, batch_size=10)
    observation, truth = cases.colour(50, training)
    network = network_of(observation)
    batches = list(schedule(training, 50, None))
    start = leaves(observation, network)
    inputs = observation.knows.whitening.whiten(truth.images)
    runs: dict[str, Callable[[], object]] = {
        "plain": partial(train, network, start, inputs, truth.labels, batches, training)
    }
    images = inputs.expand(training.epochs, *inputs.shape).contiguous().requires_grad_()
    for name, memory in (
        ("graphs", TrajectoryMemory(graphs=True)),
        ("weights", TrajectoryMemory()),
        ("every 3rd", TrajectoryMemory(every=3)),
    ):
        trajectory = Trajectory(network, start, batches, training, memory)
        runs[name] = partial(_there_and_back, trajectory, images, truth.labels)
    seconds = side_by_side(runs, 4)
    bars = {"graphs": "at most 4 x", "weights": "at most 5 x", "every 3rd": "at most 5 x"}
    return [
        (f"cifar_cnn: simulation, keeping {n}, beside plain training", f"{seconds[n] / seconds['plain']:.2f} x", bar)
        for n, bar in bars.items()
    ]


def long_simulation() -> list[tuple[str, str, str]]:
    """250 local steps: memory within the bar, and the time that it costs."""
    few, all_weights = (_one_iteration_seconds(budget) for budget in (BUDGET_MIB, 2500.0))
    memory = peak_mib(partial(one_long_iteration, BUDGET_MIB))
    return [
        ("cifar_cnn, 250 steps, one DLFA iteration: peak memory", f"{memory:.0f} MiB", "below 1536 MiB"),
        ("the same, beside keeping all weights", f"{few / all_weights:.2f} x ({few:.1f} s)", "at most 1.5 x"),
    ]


def one_long_iteration(budget_mib: float) -> None:
    torch.set_num_threads(1)
    observation, _ = cases.colour(50, LONG)
    _iterate(observation, budget_mib)


def _one_iteration_seconds(budget_mib: float) -> float:
    observation, _ = cases.colour(50, LONG)
    return side_by_side({"run": partial(_iterate, observation, budget_mib)}, 1)["run"]


def _iterate(observation: Observation, budget_mib: float) -> None:
    attack = dlfa_published(labels=OracleLabels(), setting="cifar100", iterations=1, budget_mib=budget_mib)
    attack.run(observation)


def _there_and_back(trajectory: Trajectory, images: torch.Tensor, labels: torch.Tensor) -> None:
    found = trajectory.gradient_sum(images, labels)
    torch.autograd.grad(found, [images], [torch.ones_like(g) for g in found])
