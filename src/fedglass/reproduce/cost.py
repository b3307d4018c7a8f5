"""What a probe costs on one core, in seconds, from a timing of a few plain gradients."""

from __future__ import annotations

import functools
import time
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch

from fedglass.attack.attack import Attack, Stage
from fedglass.core.types import BatchNorm, Training
from fedglass.execution.machine import one_thread
from fedglass.fl.local import MeanGradient, Step
from fedglass.models.catalogue import build
from fedglass.models.network import Network
from fedglass.reproduce.populations import KINDS

SECOND_ORDER = 3.0
"""Cost of a gradient that is differentiated again, in plain gradients; measured on the networks of the papers."""
TIMED = 3


@runtime_checkable
class Simulating(Protocol):
    """An operator that takes more than one gradient of all examples."""

    def cost(self, training: Training, examples: int) -> tuple[float, int]:
        """What a prediction and its gradient take: how many plain gradients, of how many examples each."""
        ...


@dataclass(frozen=True)
class Load:
    """What the cost of a probe depends on, beside the probe itself."""

    network: str
    data: str
    training: Training
    """As the adversary supposes it."""
    examples: int
    clients: int = 1

    @property
    def steps(self) -> int:
        return self.training.local_steps(self.examples)

    def gradient(self, examples: int) -> float:
        """Seconds of one plain gradient of that many examples."""
        return gradient_seconds(self.network, self.data, examples)

    def training_seconds(self) -> float:
        """Of one client's training."""
        return self.steps * self.gradient(min(self.training.batch_size or self.examples, self.examples))


def attack_seconds(attack: Attack, load: Load) -> float:
    """About how long an attack takes."""
    return attack.restarts * sum(_stage_seconds(stage, load) for stage in attack.stages)


def iterations_of_stages(attack: Attack | None) -> tuple[int, ...]:
    """How many iterations each stage makes, one where its solver does not say; none without an attack."""
    return () if attack is None else tuple(int(getattr(stage.solver, "iterations", 1)) for stage in attack.stages)


def _stage_seconds(stage: Stage, load: Load) -> float:
    forward, gradients, batch = stage.forward, SECOND_ORDER, load.examples
    if isinstance(forward, Simulating):
        gradients, batch = forward.cost(load.training, load.examples)
    each = load.clients * gradients * load.gradient(batch)
    # What one iteration costs, in evaluations of the energy at given pixels.
    for part in (stage.solver, stage.images):
        each *= getattr(part, "evaluations", 1.0)
    return float(getattr(stage.solver, "iterations", 1)) * each


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
