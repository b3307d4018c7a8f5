"""Attacks that the coarse-to-fine paper [K. Zhu et al., 2025] compares with, composed as it runs them.

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

from fedglass.attack.attack import Attack, Stage
from fedglass.attack.forward.gradients import OneGradient
from fedglass.attack.images.latent import GeneratorWeights
from fedglass.attack.images.pixels import Pixels
from fedglass.attack.labels.signs import MinimumRule
from fedglass.attack.parts import FirstEpoch, Labels, Solver
from fedglass.attack.refine.restoration import MedianFilter
from fedglass.attack.solvers.adam import Adam, LookaheadAdam, QuantisedAdam, SignedAdam
from fedglass.attack.solvers.schedules import CosineDecay, Lowest, LowestFrom, StepDecay
from fedglass.attack.terms.distance import Cosine, SquaredError
from fedglass.attack.terms.layers import GaussianKernel, GrowingCosine, LayeredCosine, PartialMatch
from fedglass.attack.terms.priors import TotalVariation
from fedglass.attack.terms.term import After, Term
from fedglass.core.registry import register
from fedglass.core.text import IDLG
from fedglass.recipes.inverting_gradients import PAPER as INVERTING_GRADIENTS

MINIMUM_RULE = MinimumRule()
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
