"""FedLeak: Boosting Gradient Leakage Attacks [Fan et al., 2025]."""

from __future__ import annotations

from fedglass.attack.attack import Attack, Stage
from fedglass.attack.forward.gradients import OneGradient
from fedglass.attack.images.latent import GeneratorWeights
from fedglass.attack.labels.signs import MinimumRule
from fedglass.attack.parts import FirstEpoch, Labels
from fedglass.attack.refine.restoration import MedianFilter
from fedglass.attack.solvers.adam import LookaheadAdam
from fedglass.attack.solvers.schedules import CosineDecay
from fedglass.attack.terms.layers import PartialMatch
from fedglass.attack.terms.priors import TotalVariation
from fedglass.core.registry import register

MINIMUM_RULE = MinimumRule()


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
