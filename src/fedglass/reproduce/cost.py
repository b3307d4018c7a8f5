"""Estimates of the running time of published experiments on one core, made before anything runs."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from fedglass.audit.cost import TIMED_STEPS, Workload, duration, gradient_seconds
from fedglass.models.catalogue import build
from fedglass.reproduce.image_sources import KINDS, MOST_WRITERS

if TYPE_CHECKING:
    from fedglass.reproduce.cases import ClientTrial, TrialCase
    from fedglass.reproduce.paper import Experiment

GradientTimer = Callable[[str, str, int], float]
"""Return the seconds that one plain gradient takes, given network, kind of data and number of examples."""


@functools.cache
def time_gradient(network: str, data: str, examples: int) -> float:
    """Measure the seconds of one plain gradient of that many examples, on one thread."""
    kind = KINDS[data]
    return gradient_seconds(build(network, shape=kind.shape, classes=kind.classes), kind.shape, examples)


def experiment_seconds(experiment: Experiment, timer: GradientTimer = time_gradient) -> float:
    """Estimate how long one case of an experiment takes on one core."""
    setup, training = experiment.setup, experiment.supposed or experiment.setup.training
    gradient = partial(timer, setup.network, setup.data)
    load = Workload(training, setup.examples, gradient, setup.clients)
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
    load = Workload(warm_up.training, examples, partial(timer, setup.network, setup.data))
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
