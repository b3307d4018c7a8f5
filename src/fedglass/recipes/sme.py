"""Surrogate Model Extension [Zhu, Yao, Blaschko, 2023]."""

from __future__ import annotations

from fedglass.attack.attack import Attack, Stage
from fedglass.attack.defaults import run_by_default
from fedglass.attack.forward.gradients import AlongSegment, OneGradient, OnSegment
from fedglass.attack.forward.messages import ThroughFilter
from fedglass.attack.images.pixels import Pixels
from fedglass.attack.labels.counts import InterpolatedCounts
from fedglass.attack.parts import Forward, Labels
from fedglass.attack.solvers.adam import Adam
from fedglass.attack.solvers.schedules import Constant, CosineDecay, RateSchedule, StepDecay
from fedglass.attack.terms.distance import Cosine
from fedglass.attack.terms.priors import TotalVariation
from fedglass.core.errors import UsageError, check_at_least
from fedglass.core.registry import register
from fedglass.core.text import SME
from fedglass.core.types import Observation

COUNTS = InterpolatedCounts()
PUBLISHED_STEPS = StepDecay(at=(0.374, 0.624, 0.875))
POINTS = 3
"""Points of the segment in the last stage; a fourth explains no more of the message, see `AlongSegment`."""
LESS_VARIATION = 0.7
"""Factor on the total variation if several points explain the message better than one, so that less of it is noise."""


def needs_one_gradient(observation: Observation) -> str:
    """Return why one gradient explains the message of a single local step; empty for several steps."""
    return "one local step is explained by inverting_gradients as well" if observation.knows.local_steps == 1 else ""


@run_by_default(needs_one_gradient)
@register(
    "attacks",
    "sme",
    summary="one gradient at a point between the weights before and after, then three; fast",
    paper=SME,
)
def sme(
    labels: Labels = COUNTS, tv: float = 0.01, iterations: int = 240, finish: int = 60, restarts: int = 1
) -> Attack:
    """Return SME with a smooth decay and alpha's gradient at every tenth iteration.

    Then come `finish` iterations with gradients at three points of the segment, which cost three times as much: better
    than published, in less than half of the time.
    """
    check_at_least("Attack 'sme': finish", finish, 0)
    stages: tuple[Stage, ...] = (surrogate(tv, iterations),)
    if finish:
        stages += (
            _stage(ThroughFilter(AlongSegment(POINTS)), LESS_VARIATION * tv, 0.3, finish, CosineDecay(start=0.2)),
        )
    return Attack(labels, stages, restarts=restarts)


def surrogate(tv: float, iterations: int) -> Stage:
    """Return the stage that searches images by one gradient on the segment, as a start of later stages."""
    return _stage(ThroughFilter(OnSegment(every=10)), tv, 1.0, iterations, CosineDecay(start=0.2))


@register("attacks", "sme_published", summary="one gradient at a point between the weights before and after", paper=SME)
def sme_published(
    labels: Labels = COUNTS, tv: float = 0.01, rate: float = 1.0, iterations: int = 1000, decay: bool = True
) -> Attack:
    """Return SME as released: Adam at 1.0 for images and 0.001 for alpha, three drops, bounds by projection, last
    iterate.

    Its setting for vision transformers is `rate=0.1` without the drops, `decay=False`.
    """
    if not rate > 0:
        raise UsageError(f"Attack 'sme_published': rate must be positive, got {rate:g}.")
    return Attack(labels, (_stage(OnSegment(rate=0.001 / rate), tv, rate, iterations, _published(decay)),))


@register("attacks", "sme_baseline_ig", summary="the same at the weights before: the IG of SME's tables", paper=SME)
def sme_baseline_ig(
    labels: Labels = COUNTS, tv: float = 0.01, rate: float = 1.0, iterations: int = 1000, decay: bool = True
) -> Attack:
    """Return the "IG" of SME's tables: `sme_published` with alpha fixed at the weights before, not signed Adam."""
    return Attack(labels, (_stage(OneGradient(), tv, rate, iterations, _published(decay)),))


def _published(decay: bool) -> RateSchedule:
    return PUBLISHED_STEPS if decay else Constant()


def _stage(forward: Forward, tv: float, rate: float, iterations: int, schedule: RateSchedule) -> Stage:
    solver = Adam(rate=rate, iterations=iterations, schedule=schedule)
    return Stage(forward, Pixels(), Cosine() + tv * TotalVariation(share=0.5), solver)
