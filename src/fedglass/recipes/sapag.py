"""SAPAG: A Self-Adaptive Privacy Attack from Gradients [Wang et al., 2020].

The conference paper of 2022 is called Variance of the Gradient Also Matters.
"""

from __future__ import annotations

from fedglass.attack.attack import Attack, Stage
from fedglass.attack.forward.gradients import OneGradient
from fedglass.attack.images.pixels import Pixels
from fedglass.attack.labels.signs import MinimumRule
from fedglass.attack.parts import Labels
from fedglass.attack.solvers.adam import Adam
from fedglass.attack.solvers.schedules import Lowest, StepDecay
from fedglass.attack.terms.layers import GaussianKernel
from fedglass.attack.terms.priors import TotalVariation
from fedglass.core.registry import register

MINIMUM_RULE = MinimumRule()


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

    The authors' code is not public. Adam, its rate, the labels and total variation, which the coarse-to-fine paper
    adds to all attacks (Sec. 5.1), are those of that paper's other baselines; SAPAG's own solver and layer weights
    could not be confirmed (see `GaussianKernel`).
    """
    solver = Adam(rate=rate, iterations=iterations, schedule=StepDecay(), keep=Lowest())
    objective = GaussianKernel(width) + tv * TotalVariation(share=1.0)
    return Attack(labels, (Stage(OneGradient(), Pixels(), objective, solver),), restarts=restarts)
