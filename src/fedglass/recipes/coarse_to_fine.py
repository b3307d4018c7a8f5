"""Cracking Federated Privacy: coarse-to-fine gradient inversion [K. Zhu et al., 2025], and its ablations.

Two stages of `iterations` each. The paper runs 30,000 each with 5 restarts, on GPUs; the defaults, 500 each and
one restart, take about 5 minutes for one 32 x 32 picture and a ResNet-18 on one core. Total variation is the paper's
sum over pixels, taken in [0, 1]; the paper does not specify the coordinates. A mean over whitened pixels, as in the
framework (Breaching) that the paper builds on, is twelve times weaker, and lets pixels stick at the ends of the range.

Variants that are not in the paper serve pruned messages, clients that train BatchNorm by batch statistics, and clients
that also send running statistics.
"""

from __future__ import annotations

from dataclasses import replace

from fedglass.attack.attack import Attack, Stage
from fedglass.attack.defaults import run_by_default
from fedglass.attack.forward.gradients import BesideStatistics, ObservedResidual, OneGradient
from fedglass.attack.images.pixels import Pixels
from fedglass.attack.labels.signs import MinimumRule
from fedglass.attack.parts import Forward, Labels
from fedglass.attack.solvers.adam import Adam, SignedAdam
from fedglass.attack.solvers.schedules import CosineDecay, Lowest, LowestFrom, RateSchedule, StepDecay
from fedglass.attack.terms.distance import Cosine, SupportCosine
from fedglass.attack.terms.layers import Ramp
from fedglass.attack.terms.priors import (
    PixelVariation,
    RelativeVariation,
    ReweightedL1,
    SupportReweightedL1,
    TotalVariation,
    UsualContrast,
)
from fedglass.attack.terms.term import After, ScaleRule, Term, WithStatistics
from fedglass.core.facts import Fact
from fedglass.core.registry import register
from fedglass.core.types import BatchNorm, Observation

PAPER = (
    "Zhu, Yang, Guo, Qin, Wang, Wang, Nan, Zheng: Cracking Federated Privacy, 2025, "
    "https://doi.org/10.5281/zenodo.17979356"
)
MINIMUM_RULE = MinimumRule()
PRIOR = ScaleRule(PixelVariation())
SWITCH = 0.6
"""The share of the coarse stage after which the support counts: 18,000 of 30,000 iterations."""
LATE = StepDecay(at=(0.85,))
"""The paper's drops, made for 30,000 iterations, stop a stage of 500 before it has arrived; the fine stage anneals."""
FINE = 0.01, CosineDecay(start=1 / 3)
"""Rate of the fine stage and its schedule: from iteration 10,000 of 30,000 on."""
FASTER = 0.2, CosineDecay(start=1 / 2)
"""The same for 500 iterations, which then cover the distance that the paper's 0.01 covers in 30,000."""
SMOOTH_FIRST = 30.0, 1.0, 0.85
"""How often the prior counts in the coarse stage at first and in the end, and until when it falls: strong at first, it
keeps bright corners from sticking at the ends of the range, where 500 iterations of the fine stage would leave them."""
FILLED_IN = Ramp(PRIOR, 30.0, 10.0, until=0.85), 10 * PRIOR
"""Priors of both stages if entries are missing: picture corners that depend on them need a stronger prior."""
ROUGH = Ramp(TotalVariation(), 1.0, 0.03, until=0.85)
DETAILED = Ramp(RelativeVariation(), 0.3, 0.001, until=0.85) + 0.01 * UsualContrast()
"""Priors of both stages under batch statistics: only flat areas at first, edges as the weight falls, then once more."""
RESIDUAL = ObservedResidual(sized=True)


@register(
    "attacks",
    "coarse_to_fine",
    summary="direction, then direction and the size of each entry; resists initialisations",
    paper=PAPER,
)
def coarse_to_fine(
    labels: Labels = MINIMUM_RULE,
    support: float = 0.05,
    iterations: int = 500,
    restarts: int = 1,
    tv: float | None = None,
) -> Attack:
    """Return the paper's two stages for small budgets.

    It has one late drop of the first stage's rate, a prior that is strong at its beginning, twenty times the second
    stage's rate, decaying from one half on, and, for a single example, the network's error as read from the message.
    `tv` is the weight of the total variation; without it the weight follows the pictures' size.
    """
    prior = _prior(tv)
    coarse = _coarse(RESIDUAL, Ramp(prior, *SMOOTH_FIRST), LATE, support, iterations)
    stages = coarse, _fine(RESIDUAL, prior, *FASTER, iterations)
    return Attack(labels, stages, restarts=restarts)


@register(
    "attacks", "coarse_to_fine_published", summary="coarse_to_fine with the paper's rates and operator", paper=PAPER
)
def coarse_to_fine_published(
    labels: Labels = MINIMUM_RULE,
    support: float = 0.05,
    iterations: int = 500,
    restarts: int = 1,
    tv: float | None = None,
) -> Attack:
    """Match direction first, by signed Adam; then the size of each entry, by Adam at 0.01 with cosine decay.

    The decay starts at one third. The iterate of lowest energy starts the second stage. Since `support` joins at 60 %
    of the first and raises the energy, only the iterates from there on are compared. The second stage needs the scale
    of the message. `tv` is the weight of the total variation. Without it the weight follows the paper's Equation 3,
    which gives 0.00007 for pictures of 224 x 224, where the paper's text states 0.005.
    """
    forward, prior = OneGradient(), _prior(tv)
    stages = _coarse(forward, prior, StepDecay(), support, iterations), _fine(forward, prior, *FINE, iterations)
    return Attack(labels, stages, restarts=restarts)


@register(
    "attacks",
    "coarse_to_fine_pruned",
    summary="coarse_to_fine on unpruned entries only, for messages that were pruned",
    paper=PAPER,
)
def coarse_to_fine_pruned(labels: Labels = MINIMUM_RULE, iterations: int = 500, restarts: int = 1) -> Attack:
    """Return `coarse_to_fine` for pruned messages: both stages compare only unpruned entries, with more of the prior.

    The others take a pruned entry for a gradient of zero, which most are not. Not in the paper.
    """
    coarse, fine = coarse_to_fine(labels, iterations=iterations).stages
    sent, (prior, later) = SupportCosine(), FILLED_IN
    stages = (
        replace(coarse, objective=sent + prior),
        replace(fine, objective=sent + SupportReweightedL1() + later),
    )
    return Attack(labels, stages, restarts=restarts)


def _no_batch_statistics(observation: Observation) -> str:
    training = observation.knows.training
    if training is None or training.batch_norm is not BatchNorm.BATCH:
        return "no client is known to train BatchNorm by batch statistics"
    return "coarse_to_fine_statistics reads the running statistics too" if Fact.STATISTICS in observation.facts else ""


@run_by_default(_no_batch_statistics)
@register(
    "attacks",
    "coarse_to_fine_batchnorm",
    summary="direction only, from flat areas to details twice, for clients that train BatchNorm by batch statistics",
    paper=PAPER,
)
def coarse_to_fine_batchnorm(labels: Labels = MINIMUM_RULE, iterations: int = 500, restarts: int = 1) -> Attack:
    """Return `coarse_to_fine` for clients that train with batch statistics: two stages of direction only.

    Batch statistics tie every pixel to all others, so the gradient of noise has little to do with that of a picture,
    and sizes do not help. The total variation of Inverting Gradients, at a hundred times its weight and falling, lets
    the direction choose among flat areas first. Behind a convolution without bias they remove the contrast around the
    mean colour from the gradient: the prior ignores it, and it ends as in the data's mean. Not in the paper.
    """
    first = SignedAdam(rate=0.1, iterations=iterations, schedule=CosineDecay(start=0.3))
    second = SignedAdam(rate=0.05, iterations=iterations, schedule=CosineDecay(start=0.1))
    stages = Stage(RESIDUAL, Pixels(), Cosine() + ROUGH, first), Stage(RESIDUAL, Pixels(), Cosine() + DETAILED, second)
    return Attack(labels, stages, restarts=restarts)


@register("attacks", "coarse_stage", summary="the first stage of coarse_to_fine alone", paper=PAPER)
def coarse_stage(
    labels: Labels = MINIMUM_RULE, support: float = 0.05, iterations: int = 1000, restarts: int = 1
) -> Attack:
    """Return the first stage of `coarse_to_fine` alone."""
    return Attack(
        labels, (_coarse(RESIDUAL, Ramp(PRIOR, *SMOOTH_FIRST), LATE, support, iterations),), restarts=restarts
    )


@register(
    "attacks", "coarse_stage_published", summary="direction, overall and on the support of the message", paper=PAPER
)
def coarse_stage_published(
    labels: Labels = MINIMUM_RULE, support: float = 0.05, iterations: int = 1000, restarts: int = 1
) -> Attack:
    """Return the first stage of `coarse_to_fine_published` alone: "Coarse Stages GIA" of the paper's Table 3."""
    return Attack(labels, (_coarse(OneGradient(), PRIOR, StepDecay(), support, iterations),), restarts=restarts)


@register("attacks", "invg_scaled", summary="invg with total variation that follows the pictures' size", paper=PAPER)
def invg_scaled(labels: Labels = MINIMUM_RULE, iterations: int = 1000, restarts: int = 1) -> Attack:
    """Return Inverting Gradients with the first stage's total variation: "+ TV rescale" of the paper's Table 3."""
    solver = SignedAdam(rate=0.1, iterations=iterations, schedule=StepDecay(), keep=Lowest())
    return Attack(labels, (Stage(OneGradient(), Pixels(), Cosine() + PRIOR, solver),), restarts=restarts)


def _coarse(forward: Forward, prior: Term, schedule: RateSchedule, support: float, iterations: int) -> Stage:
    solver = SignedAdam(rate=0.1, iterations=iterations, schedule=schedule, keep=LowestFrom(SWITCH))
    return Stage(forward, Pixels(), Cosine() + After(support * SupportCosine(), SWITCH) + prior, solver)


def _fine(forward: Forward, prior: Term, rate: float, schedule: RateSchedule, iterations: int) -> Stage:
    solver = Adam(rate=rate, iterations=iterations, schedule=schedule, keep=Lowest())
    return Stage(forward, Pixels(), Cosine() + ReweightedL1() + prior, solver)


def _prior(tv: float | None) -> Term:
    return PRIOR if tv is None else tv * PixelVariation()


@run_by_default(
    lambda seen: "" if Fact.STATISTICS in seen.facts else "no running statistics that have moved were recorded"
)
@register(
    "attacks",
    "coarse_to_fine_statistics",
    summary="coarse_to_fine_batchnorm that also matches the running statistics sent with the update",
    paper=PAPER,
)
def coarse_to_fine_statistics(
    labels: Labels = MINIMUM_RULE, weight: float = 1.0, iterations: int = 500, restarts: int = 1
) -> Attack:
    """Match also the statistics of BatchNorm layers that train by the batch: they reveal mean and contrast of pictures.

    Defences of the update do not change them. Not in the paper.
    """
    attack = coarse_to_fine_batchnorm(labels, iterations, restarts)

    def with_statistics(stage: Stage) -> Stage:
        return replace(
            stage, forward=BesideStatistics(stage.forward), objective=WithStatistics(stage.objective, weight)
        )

    return replace(attack, stages=tuple(map(with_statistics, attack.stages)))
