"""Surrogate Model Extension [Zhu, Yao, Blaschko, 2023]."""

from __future__ import annotations

from fedglass.attack.attack import Attack, Stage
from fedglass.attack.forward.one_gradient import OneGradient
from fedglass.attack.forward.segment import OnSegment
from fedglass.attack.images.pixels import Pixels
from fedglass.attack.labels.counts import InterpolatedCounts
from fedglass.attack.parts import Forward, Labels
from fedglass.attack.solvers.adam import Adam
from fedglass.attack.solvers.schedules import CosineDecay, Schedule, StepDecay
from fedglass.attack.terms.distance import Cosine
from fedglass.attack.terms.total_variation import TotalVariation
from fedglass.core.errors import UsageError

COUNTS = InterpolatedCounts()
PUBLISHED_STEPS = StepDecay(at=(0.374, 0.624, 0.875))


def sme(labels: Labels = COUNTS, tv: float = 0.01, iterations: int = 400, restarts: int = 1) -> Attack:
    """SME with a smooth decay and alpha's gradient at every tenth iteration: the published quality in less time."""
    return _compose(OnSegment(every=10), labels, tv, 1.0, iterations, CosineDecay(start=0.2), restarts)


def sme_published(labels: Labels = COUNTS, tv: float = 0.01, rate: float = 1.0, iterations: int = 1000) -> Attack:
    """SME as released: Adam at 1.0 for images and 0.001 for alpha, three drops, bounds by projection, last iterate."""
    if not rate > 0:
        raise UsageError(f"Attack 'sme_published': rate must be positive, got {rate:g}.")
    return _compose(OnSegment(rate=0.001 / rate), labels, tv, rate, iterations, PUBLISHED_STEPS, 1)


def sme_baseline_ig(labels: Labels = COUNTS, tv: float = 0.01, rate: float = 1.0, iterations: int = 1000) -> Attack:
    """The "IG" of SME's tables: `sme_published` with alpha fixed at the weights before, not Geiping's signed Adam."""
    return _compose(OneGradient(), labels, tv, rate, iterations, PUBLISHED_STEPS, 1)


def _compose(
    forward: Forward, labels: Labels, tv: float, rate: float, iterations: int, schedule: Schedule, restarts: int
) -> Attack:
    solver = Adam(rate=rate, iterations=iterations, schedule=schedule)
    stage = Stage(forward, Pixels(), Cosine() + tv * TotalVariation(share=0.5), solver)
    return Attack(labels, (stage,), restarts=restarts)
