"""Cracking Federated Privacy: coarse-to-fine gradient inversion [K. Zhu et al., 2025].

Its ablations and the attacks that it is compared with follow below.

Two stages of `iterations` each. The paper runs 30,000 each with 5 restarts, on GPUs; the defaults, 500 each and
one restart, take about 5 minutes for one 32 x 32 picture and a ResNet-18 on one core. Total variation is the paper's
sum over pixels, taken in [0, 1]; the paper does not specify the coordinates. A mean over whitened pixels, as in the
framework (Breaching) that the paper builds on, is twelve times weaker, and lets pixels stick at the ends of the range.

Variants that are not in the paper serve pruned messages, clients that train BatchNorm by batch statistics, and clients
that also send running statistics.

Attacks that the coarse-to-fine paper [K. Zhu et al., 2025] compares with, composed as it runs them.

- `invg`: Inverting Gradients [Geiping et al., 2020];
- `idlg_adam`: iDLG [Zhao et al., 2020] with Adam;
- `sapag`: A Self-Adaptive Privacy Attack from Gradients [Wang et al., 2020; the conference paper of 2022 is called
  Variance of the Gradient Also Matters];
- `agic`: Approximate Gradient Inversion Attack on Federated Learning [Xu et al., 2022];
- `hfgradinv`: High-Fidelity Gradient Inversion in Distributed Learning [Ye et al., 2024];
- `fedleak`: Boosting Gradient Leakage Attacks [Fan et al., 2025].

All have GradInversion's labels, one gradient for the whole message and total variation, which the paper adds to every
attack (Sec. 5.1). The iterate of lowest energy is returned, as the paper's framework (Breaching) does, unless a recipe
says otherwise. The paper's budget is 30,000 iterations and 5 restarts.
"""

from __future__ import annotations

from dataclasses import replace

from fedglass.attack.attack import Attack, Stage
from fedglass.attack.defaults import run_by_default
from fedglass.attack.forward.gradients import BesideStatistics, ObservedResidual, OneGradient
from fedglass.attack.images.latent import GeneratorWeights
from fedglass.attack.images.pixels import Pixels
from fedglass.attack.labels.targets import MinimumRule
from fedglass.attack.parts import FirstEpoch, Forward, Labels, Solver
from fedglass.attack.refine.restoration import MedianFilter
from fedglass.attack.solvers.adam import Adam, LookaheadAdam, QuantisedAdam, SignedAdam
from fedglass.attack.solvers.schedules import CosineDecay, Lowest, LowestFrom, RateSchedule, StepDecay
from fedglass.attack.terms.distance import (
    Cosine,
    GaussianKernel,
    GrowingCosine,
    LayeredCosine,
    PartialMatch,
    Ramp,
    SquaredError,
    SupportCosine,
)
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
from fedglass.core.text import IDLG
from fedglass.core.types import BatchNorm, Observation
from fedglass.recipes.inverting_gradients import PAPER as INVERTING_GRADIENTS

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
    attack = coarse_to_fine(labels, support, iterations, restarts)
    return replace(attack, stages=attack.stages[:1])


@register(
    "attacks", "coarse_stage_published", summary="direction, overall and on the support of the message", paper=PAPER
)
def coarse_stage_published(
    labels: Labels = MINIMUM_RULE, support: float = 0.05, iterations: int = 1000, restarts: int = 1
) -> Attack:
    """Return the first stage of `coarse_to_fine_published` alone: "Coarse Stages GIA" of the paper's Table 3."""
    attack = coarse_to_fine_published(labels, support, iterations, restarts)
    return replace(attack, stages=attack.stages[:1])


@register("attacks", "invg_scaled", summary="invg with total variation that follows the pictures' size", paper=PAPER)
def invg_scaled(labels: Labels = MINIMUM_RULE, iterations: int = 1000, restarts: int = 1) -> Attack:
    """Return Inverting Gradients with the first stage's total variation: "+ TV rescale" of the paper's Table 3."""
    return _pixel_search(labels, Cosine() + PRIOR, _signed_adam(iterations), restarts)


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


GROWN = 4 / 15
"""The share of the iterations after which `hfgradinv` adds no more layers: 4,000 of 15,000 iterations."""


def _pixel_search(labels: Labels, objective: Term, solver: Solver, restarts: int) -> Attack:
    return Attack(labels, (Stage(OneGradient(), Pixels(), objective, solver),), restarts=restarts)


def _signed_adam(iterations: int) -> SignedAdam:
    return SignedAdam(rate=0.1, iterations=iterations, schedule=StepDecay(), keep=Lowest())


def _adam(rate: float, iterations: int) -> Adam:
    return Adam(rate=rate, iterations=iterations, schedule=StepDecay(), keep=Lowest())


@register(
    "attacks",
    "invg",
    summary="inverting_gradients_published with GradInversion's labels, iterate of lowest energy",
    paper=INVERTING_GRADIENTS,
)
def invg(labels: Labels = MINIMUM_RULE, tv: float = 0.01, iterations: int = 1000, restarts: int = 1) -> Attack:
    """Return Inverting Gradients as the coarse-to-fine paper runs it [K. Zhu et al., 2025, App. A].

    The paper's weight of total variation could not be confirmed.
    """
    objective = Cosine() + tv * TotalVariation(share=1.0)
    return _pixel_search(labels, objective, _signed_adam(iterations), restarts)


@register("attacks", "idlg_adam", summary="idlg with Adam and GradInversion's labels, for deep networks", paper=IDLG)
def idlg_adam(
    labels: Labels = MINIMUM_RULE, tv: float = 0.01, rate: float = 0.1, iterations: int = 1000, restarts: int = 1
) -> Attack:
    """Return iDLG as the coarse-to-fine paper runs it [K. Zhu et al., 2025, App. A]: Adam and total variation.

    Adam replaces L-BFGS because of deep networks. The weight of total variation, the rate, the decay and the bounds
    could not be confirmed and are those of the other baselines. iDLG itself has no such term.
    """
    objective = SquaredError() + tv * TotalVariation(share=1.0)
    return _pixel_search(labels, objective, _adam(rate, iterations), restarts)


@register(
    "attacks",
    "sapag",
    summary="Gaussian kernel of each layer's difference, bandwidth from the message",
    paper="Wang, Deng, Guo, Wang, Meng, Liu, Ding, Rajasekaran: SAPAG, 2020, https://arxiv.org/abs/2009.06228",
)
def sapag(
    labels: Labels = MINIMUM_RULE,
    width: float = 1.0,
    tv: float = 0.01,
    rate: float = 0.1,
    iterations: int = 1000,
    restarts: int = 1,
) -> Attack:
    """Use the Gaussian kernel of each layer's difference as distance, with a bandwidth read from the message.

    The authors' code is not public. Adam, its rate, the labels and total variation are those of the other baselines;
    SAPAG's own solver and layer weights could not be confirmed (see `GaussianKernel`).
    """
    objective = GaussianKernel(width) + tv * TotalVariation(share=1.0)
    return _pixel_search(labels, objective, _adam(rate, iterations), restarts)


@register(
    "attacks",
    "agic",
    summary="cosine distance with weights that increase with depth, local steps taken as one",
    paper="Xu, Hong, Huang, Chen, Decouchant: AGIC, SRDS 2022, https://arxiv.org/abs/2204.13784",
)
def agic(labels: Labels = MINIMUM_RULE, tv: float = 0.01, iterations: int = 1000, restarts: int = 1) -> Attack:
    """Return Inverting Gradients with layers that weigh more towards the output; local steps count as one.

    The update of several local steps is approximated by the one gradient of all examples at the weights before, instead
    of a simulation. The paper can also join the messages of several rounds, which one message does not offer. Its code
    was not found in public and its exact weights could not be confirmed: those of the layers are those of
    `LayeredCosine`, all local steps weigh the same.
    """
    objective = LayeredCosine() + tv * TotalVariation(share=1.0)
    return _pixel_search(labels, objective, _signed_adam(iterations), restarts)


@register(
    "attacks",
    "hfgradinv",
    summary="cosine distance on a growing, random part of the message, quantised Adam",
    paper=(
        "Ye, Luo, Zhou, Tang: High-Fidelity Gradient Inversion in Distributed Learning, AAAI 2024, "
        "https://github.com/MiLab-HITSZ/2023YeHFGradInv"
    ),
)
def hfgradinv(labels: Labels = MINIMUM_RULE, tv: float = 0.005, iterations: int = 1000, restarts: int = 1) -> Attack:
    """Match the last layers first, then more of them, a random part of their entries; total variation from 20 % on.

    As released for ResNet-34, all shares of 15,000 iterations, with total variation as the only prior. The release adds
    batch statistics, and estimates labels with a network trained for the purpose. It restarts the comparison of
    energies whenever layers join; here it starts after the last time.
    """
    solver = QuantisedAdam(rate=0.1, iterations=iterations, schedule=StepDecay(), keep=LowestFrom(GROWN))
    objective = GrowingCosine(until=GROWN) + After(tv * TotalVariation(share=1.0), 0.2)
    return _pixel_search(labels, objective, solver, restarts)


@register(
    "attacks",
    "fedleak",
    summary="weights of a generator, the larger entries of each layer, a look one step ahead",
    paper=(
        "Fan, Wang, Chen, Zhou: Boosting Gradient Leakage Attacks (FedLeak), USENIX Security 2025, "
        "https://arxiv.org/abs/2506.08435"
    ),
)
def fedleak(
    labels: Labels = MINIMUM_RULE,
    tv: float = 1e-5,
    width: int = 256,
    median: int = 5,
    iterations: int = 1000,
    restarts: int = 1,
    crop: bool = False,
) -> Attack:
    """Search the weights of a generator by partial gradient matching and gradient regularisation; last iterate.

    As released (read from the copy in github.com/KaimingZhu/FedLeak_transfer_test: 10,000 iterations, rate 0.01 with
    cosine decay, a median filter at the end), at full resolution and with inferred labels as the coarse-to-fine paper
    runs it; the release uses the true ones. AdamW's weight decay is left out, and total variation is measured in
    whitened coordinates. Sides other than powers of two are resized, or cropped with `crop`.
    """
    solver = LookaheadAdam(rate=0.01, iterations=iterations, schedule=CosineDecay())
    objective = PartialMatch() + tv * TotalVariation(share=1.0)
    stage = Stage(OneGradient(), GeneratorWeights(width, crop=crop), objective, solver)
    return Attack(labels, (stage,), FirstEpoch(), (MedianFilter(median),), restarts)
