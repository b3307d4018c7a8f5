"""High-Fidelity Gradient Inversion in Distributed Learning [Ye et al., 2024]."""

from __future__ import annotations

from fedglass.attack.attack import Attack, Stage
from fedglass.attack.forward.gradients import OneGradient
from fedglass.attack.images.pixels import Pixels
from fedglass.attack.labels.signs import MinimumRule
from fedglass.attack.parts import Labels
from fedglass.attack.solvers.adam import QuantisedAdam
from fedglass.attack.solvers.schedules import LowestFrom, StepDecay
from fedglass.attack.terms.layers import GrowingCosine
from fedglass.attack.terms.priors import TotalVariation
from fedglass.attack.terms.term import After
from fedglass.core.registry import register

MINIMUM_RULE = MinimumRule()
GROWN = 4 / 15
"""The share of the iterations after which no more layers are added: 4,000 of 15,000 iterations."""


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

    As released for ResNet-34, all shares of 15,000 iterations, with total variation as the only prior, as the
    coarse-to-fine paper runs its baselines. The release adds batch statistics, and estimates labels with a network
    trained for the purpose. It restarts the comparison of energies whenever layers join; here it starts after the last
    time.
    """
    solver = QuantisedAdam(rate=0.1, iterations=iterations, schedule=StepDecay(), keep=LowestFrom(GROWN))
    objective = GrowingCosine(until=GROWN) + After(tv * TotalVariation(share=1.0), 0.2)
    return Attack(labels, (Stage(OneGradient(), Pixels(), objective, solver),), restarts=restarts)
