"""What a re-creation will cost, from a timing of a few steps before it starts."""

from __future__ import annotations

import functools
import time
from collections.abc import Iterable
from dataclasses import replace

import torch

from fedglass.attack.attack import Stage
from fedglass.attack.forward.unroll import Unroll, UnrollEpochs
from fedglass.attack.hypotheses import trainings
from fedglass.attack.images.generator import GeneratorWeights
from fedglass.attack.solvers.lookahead_adam import LookaheadAdam
from fedglass.audit.machine import one_thread
from fedglass.core.types import BatchNorm
from fedglass.fl.local import MeanGradient, Step
from fedglass.models.catalogue import build
from fedglass.models.network import Network
from fedglass.reproduce.cases import Case
from fedglass.reproduce.experiment import Experiment
from fedglass.reproduce.populations import KINDS
from fedglass.reproduce.probes.geometry import Geometry
from fedglass.reproduce.probes.invert import Invert
from fedglass.reproduce.probes.reconstruct import Reconstruct
from fedglass.reproduce.probes.try_trainings import TryTrainings

SECOND_ORDER = 3.0
"""Cost of a gradient that is differentiated again, in plain gradients; both measured on the networks of the papers."""
SIMULATION = 4.0
"""Cost of simulating a training and walking back, in plain trainings."""
GENERATED = 2.0
"""Cost of an iteration whose images come from a generator, in iterations on pixels."""
TIMED = 3


def seconds_of(experiment: Experiment) -> float:
    """About how long one case takes on one core."""
    setup, probe = experiment.setup, experiment.probe
    training = experiment.supposed or setup.training
    batch = min(training.batch_size or setup.examples, setup.examples)
    local = training.local_steps(setup.examples) * gradient_seconds(setup.network, setup.data, batch)
    if isinstance(probe, Geometry):
        whole = gradient_seconds(setup.network, setup.data, setup.examples)
        return local + (training.local_steps(setup.examples) + probe.points) * whole
    if isinstance(probe, Invert):
        return local + probe.attack.restarts * sum(_stage_seconds(s, experiment, local) for s in probe.attack.stages)
    if isinstance(probe, TryTrainings):
        steps = setup.training.local_steps(setup.examples)
        guesses = trainings(setup.training.lr, steps, setup.examples)
        return sum(seconds_of(replace(experiment, probe=probe.probe, supposed=guess)) for guess in guesses)
    if not isinstance(probe, Reconstruct):
        return local + 60 * gradient_seconds(setup.network, setup.data, 50)  # 3000 dummy images, twice, no gradient
    return local + sum(_stage_seconds(stage, experiment, local) for stage in probe.attack.stages)


def _stage_seconds(stage: Stage, experiment: Experiment, local: float) -> float:
    """One stage of an attack; `local` is the time of the client's own training."""
    setup, training = experiment.setup, experiment.supposed or experiment.setup.training
    full = gradient_seconds(setup.network, setup.data, setup.examples * setup.clients)
    if isinstance(stage.forward, Unroll):
        iteration = SIMULATION * local * setup.clients
    elif isinstance(stage.forward, UnrollEpochs):
        iteration = SIMULATION * training.passes(setup.examples) * full
    else:
        iteration = SECOND_ORDER * full
    return float(getattr(stage.solver, "iterations", 1)) * _evaluations(stage) * iteration


def _evaluations(stage: Stage) -> float:
    """What one iteration costs, in evaluations of the energy at given pixels."""
    looked_at = 2.0 if isinstance(stage.solver, LookaheadAdam) else 1.0
    return looked_at * (GENERATED if isinstance(stage.images, GeneratorWeights) else 1.0)


def training_seconds(case: Case) -> float:
    """About how long the case's network is trained before, on one core."""
    warm_up, setup = case.experiment.setup.warm_up, case.experiment.setup
    if warm_up is None:
        return 0.0
    examples = warm_up.examples or len(case.population.dataset()) // (case.population.writers() or 1)
    batch = min(warm_up.training.batch_size or examples, examples)
    step = gradient_seconds(setup.network, setup.data, batch)
    return warm_up.rounds * warm_up.called * warm_up.training.local_steps(examples) * step


def in_words(cases: Iterable[Case], workers: int, untrained: Iterable[Case] = ()) -> str:
    """The whole cost in one sentence, or that nothing is left to do."""
    costs = [seconds_of(case.experiment) for case in cases]
    if not costs:
        return "Nothing is left to run."
    each = (
        f"about {duration(costs[0])}"
        if max(costs) < 1.5 * min(costs)
        else f"{duration(min(costs))} to {duration(max(costs))}"
    )
    running = min(workers, len(costs))
    wall = max(sum(costs) / running, max(costs))
    plural = "" if len(costs) == 1 else "s"
    training = max((training_seconds(case) for case in untrained), default=0.0)
    before = f", after about {duration(training)} of training the network" if training else ""
    return (
        f"{len(costs)} run{plural}, {each} each on one core, about {duration(wall)} in all with {running} "
        f"worker{'' if running == 1 else 's'} (estimated from {TIMED} timed steps){before}."
    )


def duration(seconds: float) -> str:
    """A length of time in one unit.

    >>> duration(0.4), duration(90), duration(5000), duration(200000)
    ('1 s', '90 s', '83 min', '56 h')
    """
    if seconds < 120:
        return f"{max(1, round(seconds))} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"


@functools.cache
def gradient_seconds(network: str, data: str, examples: int) -> float:
    """The time of one plain gradient of that many examples, on one thread."""
    kind = KINDS[data]
    if kind.shape[1] > 32 and examples > 1:
        return examples * gradient_seconds(network, data, 1)  # photographs are dear: one is timed
    model = build(network, shape=kind.shape, classes=kind.classes)
    pure = Network(model, dict(model.named_buffers()), BatchNorm.FROZEN)
    weights = [p.detach().clone().requires_grad_() for p in model.parameters()]
    step = Step(pure, weights, torch.zeros(examples, *kind.shape), torch.zeros(examples, dtype=torch.int64))
    times = []
    with one_thread():
        for _ in range(TIMED + 1):  # the first one warms up
            start = time.perf_counter()
            MeanGradient().gradient(step)
            times.append(time.perf_counter() - start)
    return min(times[1:])
