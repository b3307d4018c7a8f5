"""Estimates of the running time on one core, made from a few timed gradients before anything runs."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import torch

from fedglass.attack.attack import Attack, Stage
from fedglass.core.types import BatchNorm, Training
from fedglass.execution.machine import repeatable_arithmetic
from fedglass.fl.local import MeanGradient, Step
from fedglass.models.catalogue import build
from fedglass.models.network import Network
from fedglass.reproduce.image_sources import KINDS, MOST_WRITERS

if TYPE_CHECKING:
    from fedglass.reproduce.cases import ClientTrial, TrialCase
    from fedglass.reproduce.paper import Experiment

SECOND_ORDER = 3.0
"""Cost of a gradient that is differentiated again, in plain gradients; measured on the networks of the papers."""
TIMED_STEPS = 3
GradientTimer = Callable[[str, str, int], float]
"""Return the seconds that one plain gradient takes, given network, kind of data and number of examples."""


@runtime_checkable
class HasSimulationCost(Protocol):
    """An operator that takes more than one gradient of all examples."""

    def cost(self, training: Training, examples: int) -> tuple[float, int]:
        """Return the cost of a prediction and its gradient: how many plain gradients, of how many examples each."""
        ...


@functools.cache
def time_gradient(network: str, data: str, examples: int) -> float:
    """Measure the seconds of one plain gradient of that many examples, on one thread."""
    kind = KINDS[data]
    if kind.shape[1] > 32 and examples > 1:
        return examples * time_gradient(network, data, 1)  # photographs are slow: one is timed
    model = build(network, shape=kind.shape, classes=kind.classes)
    pure = Network(model, dict(model.named_buffers()), BatchNorm.FROZEN)
    weights = [p.detach().clone().requires_grad_() for p in model.parameters()]
    step = Step(pure, weights, torch.zeros(examples, *kind.shape), torch.zeros(examples, dtype=torch.int64))
    times = []
    with repeatable_arithmetic():
        for _ in range(TIMED_STEPS + 1):  # the first one warms up
            start = time.perf_counter()
            MeanGradient().gradient(step)
            times.append(time.perf_counter() - start)
    return min(times[1:])


@dataclass(frozen=True)
class Workload:
    """Everything that the cost of a probe depends on, apart from the probe itself."""

    network: str
    data: str
    training: Training
    """The training that the adversary assumes."""
    examples: int
    clients: int = 1
    timer: GradientTimer = time_gradient

    @property
    def steps(self) -> int:
        return self.training.local_steps(self.examples)

    def gradient(self, examples: int) -> float:
        """Return the seconds of one plain gradient of that many examples."""
        return self.timer(self.network, self.data, examples)

    def training_seconds(self) -> float:
        """Return the seconds of one client's training."""
        return self.steps * self.gradient(min(self.training.batch_size or self.examples, self.examples))


def attack_seconds(attack: Attack, load: Workload) -> float:
    """Estimate how long an attack takes."""
    return attack.restarts * sum(_stage_seconds(stage, load) for stage in attack.stages)


def iterations_of_stages(attack: Attack | None) -> tuple[int, ...]:
    """Return the iterations of each stage, 1 for a solver that does not state them; empty without an attack."""
    return () if attack is None else tuple(int(getattr(stage.solver, "iterations", 1)) for stage in attack.stages)


def _stage_seconds(stage: Stage, load: Workload) -> float:
    forward, gradients, batch = stage.forward, SECOND_ORDER, load.examples
    if isinstance(forward, HasSimulationCost):
        gradients, batch = forward.cost(load.training, load.examples)
    seconds = load.clients * gradients * load.gradient(batch)
    # What one iteration costs, in evaluations of the energy at given pixels.
    for part in (stage.solver, stage.images):
        seconds *= getattr(part, "evaluations", 1.0)
    return float(getattr(stage.solver, "iterations", 1)) * seconds


def experiment_seconds(experiment: Experiment, timer: GradientTimer = time_gradient) -> float:
    """Estimate how long one case of an experiment takes on one core."""
    setup, training = experiment.setup, experiment.supposed or experiment.setup.training
    load = Workload(setup.network, setup.data, training, setup.examples, setup.clients, timer)
    # Of clients that train for many rounds all are simulated, of a message those behind it.
    run = setup.federation_run
    trainings = 1 if run is None else run.rounds * setup.clients
    before = None if run is None else run.before
    trained = load if before is None else replace(load, examples=before.examples, training=before.training)
    return trainings * trained.training_seconds() + experiment.probe.seconds(load)


def warm_up_seconds(trial: ClientTrial, timer: GradientTimer = time_gradient) -> float:
    """Estimate how long the trial's network is trained beforehand, on one core."""
    setup, population = trial.experiment.setup, trial.population
    warm_up = setup.warm_up
    if warm_up is None:
        return 0.0
    examples = warm_up.examples or len(population.dataset()) // (population.writers() or 1)
    load = Workload(setup.network, setup.data, warm_up.training, examples, timer=timer)
    clients = population.writers(warm_up.examples) or MOST_WRITERS
    called = max(1, round(warm_up.participation(clients) * clients))
    return warm_up.rounds * called * load.training_seconds()


def describe_cost(
    cases: Iterable[TrialCase],
    workers: int,
    untrained: Iterable[TrialCase] = (),
    timer: GradientTimer = time_gradient,
) -> str:
    """Return the total cost as one sentence, or say that nothing is left to run.

    `untrained` are the cases with a network that has to be trained first.
    """
    costs = [experiment_seconds(case.subject.experiment, timer) for case in cases]
    if not costs:
        return "Nothing is left to run."
    one_run = (
        f"about {duration(costs[0])}"
        if max(costs) < 1.5 * min(costs)
        else f"{duration(min(costs))} to {duration(max(costs))}"
    )
    running = min(workers, len(costs))
    wall = max(sum(costs) / running, max(costs))
    plural = "" if len(costs) == 1 else "s"
    training = max((warm_up_seconds(case.subject, timer) for case in untrained), default=0.0)
    before = f", after about {duration(training)} of training the network" if training else ""
    return (
        f"{len(costs)} run{plural}, {one_run} each on one core, about {duration(wall)} in all with {running} "
        f"worker{'' if running == 1 else 's'} (estimated from {TIMED_STEPS} timed steps){before}."
    )


def duration(seconds: float) -> str:
    """Return a length of time in one unit.

    >>> duration(0.4), duration(90), duration(5000), duration(200000)
    ('1 s', '90 s', '83 min', '56 h')
    """
    if seconds < 120:
        return f"{max(1, round(seconds))} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"
