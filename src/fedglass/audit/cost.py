"""Estimates of the running time on one core, made from a few timed gradients before anything runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, partial

import torch
from torch import nn

from fedglass.attack.attack import Attack, Stage
from fedglass.attack.best_of import AnyAttack, BestOf
from fedglass.attack.exact.exact import ExactAttack
from fedglass.audit.audit import Job
from fedglass.audit.probes import PlayAttack
from fedglass.core.types import BatchNorm, Observation, Training
from fedglass.execution.executor import FAILURES, failure_text
from fedglass.execution.machine import repeatable_arithmetic
from fedglass.models.network import Network
from fedglass.verdict.texts import count

SECOND_ORDER = 3.0
"""Cost of a gradient that is differentiated again, in plain gradients; measured on the networks of the papers."""
TIMED_STEPS = 3
LONG_STEP = 1.0
"""Seconds of a step after which no further one is timed."""
LARGEST_SIDE = 32
"""Batches of larger images are slow: one image is timed, and counts for each."""
GradientSeconds = Callable[[int], float]
"""Return the seconds that one plain gradient of that many examples takes."""


def gradient_seconds(model: nn.Module, shape: tuple[int, int, int], examples: int) -> float:
    """Measure the seconds of one plain gradient of that many examples, on one thread."""
    if shape[1] > LARGEST_SIDE and examples > 1:
        return examples * gradient_seconds(model, shape, 1)
    pure = Network(model, dict(model.named_buffers()), BatchNorm.FROZEN)
    weights = [p.detach().clone().requires_grad_() for p in model.parameters()]
    inputs = torch.zeros(examples, *shape)
    times = list[float]()
    with repeatable_arithmetic():
        while len(times) <= TIMED_STEPS and sum(times) < LONG_STEP:  # the first one warms up
            start = time.perf_counter()
            torch.autograd.grad(pure(weights, inputs).square().mean(), weights, allow_unused=True)
            times.append(time.perf_counter() - start)
    return min(times[1:] or times)


@dataclass(frozen=True)
class Workload:
    """Everything that the cost of an attack depends on, apart from the attack itself."""

    training: Training
    """The training that the adversary assumes."""
    examples: int
    gradient: GradientSeconds
    clients: int = 1

    @property
    def steps(self) -> int:
        return self.training.local_steps(self.examples)

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
    if cost := getattr(forward, "cost", None):  # of an operator that takes more than one gradient of all examples
        gradients, batch = cost(load.training, load.examples)
    seconds = load.clients * gradients * load.gradient(batch)
    # What one iteration costs, in evaluations of the energy at given pixels.
    for part in (stage.solver, stage.images):
        seconds *= getattr(part, "evaluations", 1.0)
    return float(getattr(stage.solver, "iterations", 1)) * seconds


def duration(seconds: float) -> str:
    """Return a length of time in one unit.

    >>> duration(0.4), duration(90), duration(5000), duration(200000)
    ('1 s', '90 s', '83 min', '56 h')
    """
    if seconds < 120:
        return f"{max(1, round(seconds))} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"


# The audit of a plan.


def describe_time(job: Job, workers: int) -> list[str]:
    """Return sentences about the time that a job takes."""
    expected = estimate(job)
    if expected.problem:
        return [f"The time cannot be estimated: {expected.problem}."]
    if not expected.by_attack:
        return ["No searches: exact attacks, the candidate game and the check of each message take seconds to minutes."]
    lines = [f"{name}: about {duration(seconds)} for each case." for name, seconds in expected.by_attack.items()]
    wall = expected.wall_seconds(workers)
    limit = "" if job.minutes is None else f" Searches stop after {job.minutes:g} min (--minutes)."
    text = f"All {expected.cases} searches take about {duration(wall)} on {count(workers, 'core')}."
    text = text if expected.cases > 1 else f"The search takes about {duration(wall)}."
    return [*lines, text + limit, "These times are estimated from a few timed gradients."]


def time_as_json(job: Job) -> dict[str, object]:
    """Return the estimated time of a job as JSON."""
    expected = estimate(job)
    return {
        "seconds_by_attack": dict(expected.by_attack),
        "seconds_on_one_core": None if expected.problem else expected.total,
        "problem": expected.problem,
    }


def estimated_seconds(job: Job, workers: int) -> float | None:
    """Return the seconds that the searches of a job take with that many workers; None if this is unknown."""
    expected = estimate(job)
    return expected.wall_seconds(workers) if expected.by_attack else None


@dataclass(frozen=True)
class Estimate:
    """The estimated time of an audit's searches: the seconds of one case by attack, and of all cases on one core."""

    by_attack: Mapping[str, float]
    total: float
    cases: int
    problem: str = ""
    """The reason that the time cannot be estimated; empty if it can."""

    def wall_seconds(self, workers: int) -> float:
        """Return the time with that many workers."""
        longest = max(self.by_attack.values(), default=0.0)
        return max(self.total / max(1, min(workers, self.cases)), longest)


def estimate(job: Job) -> Estimate:
    """Estimate the time of a job's searches from a few timed gradients of each model."""
    try:
        seconds = dict(_case_seconds(job))
    except (*FAILURES, ValueError, TypeError, LookupError, ArithmeticError) as error:
        return Estimate({}, 0.0, 0, failure_text(error).rstrip("."))
    by_attack: dict[str, float] = {}
    for case in job.cases:
        if case.key in seconds:
            name = case.facts["attack"]
            by_attack[name] = max(by_attack.get(name, 0.0), seconds[case.key])
    return Estimate(by_attack, sum(seconds.values()), len(seconds))


def _case_seconds(job: Job) -> Iterator[tuple[str, float]]:
    """Yield the key and the seconds of each search, without repeating the same measurement."""
    measured: dict[tuple[object, ...], float] = {}
    timer = cache(gradient_seconds)
    observations = [[view.observation for view in source.rehearse()] for source in job.sources]
    for case in job.cases:
        if not isinstance(case.probe, PlayAttack) or isinstance(case.probe.attack, ExactAttack):
            continue
        observation = observations[case.subject[0]][case.subject[1]]
        knows = observation.knows
        kind = (case.facts["attack"], case.subject[0], knows.examples, knows.clients, repr(knows.training))
        if kind not in measured:
            measured[kind] = _attack_on(case.probe.attack, observation, partial(timer, observation.model, knows.shape))
        yield case.key, measured[kind]


def _attack_on(attack: AnyAttack, observation: Observation, timer: GradientSeconds) -> float:
    """Return the seconds of an attack; of several guesses the sum, since each of them may be run."""
    if isinstance(attack, BestOf):
        options = attack.guesses.options(attack.attack, observation)
        return sum(_attack_on(guess.attack, guess.observation, timer) for guess in options)
    if not isinstance(attack, Attack):
        return 0.0
    knows = observation.knows
    training = knows.training or Training(lr=knows.lr or 0.1)
    rounds = 1 + len(observation.also)
    return rounds * attack_seconds(attack, Workload(training, knows.examples, timer))
