"""Inverting Gradients [Geiping et al., 2020] as the coarse-to-fine paper runs it [K. Zhu et al., 2025, App. A]."""

from __future__ import annotations

from fedglass.attack.attack import Attack, Stage
from fedglass.attack.forward.one_gradient import OneGradient
from fedglass.attack.images.pixels import Pixels
from fedglass.attack.labels.minimum_rule import MinimumRule
from fedglass.attack.parts import Labels
from fedglass.attack.solvers.adam import SignedAdam
from fedglass.attack.solvers.keep import Lowest
from fedglass.attack.solvers.schedules import StepDecay
from fedglass.attack.terms.distance import Cosine
from fedglass.attack.terms.total_variation import TotalVariation
from fedglass.core.registry import register
from fedglass.recipes.inverting_gradients import PAPER

MINIMUM_RULE = MinimumRule()


@register(
    "attacks",
    "invg",
    summary="inverting_gradients_published with GradInversion's labels, iterate of lowest energy",
    paper=PAPER,
)
def invg(labels: Labels = MINIMUM_RULE, tv: float = 0.01, iterations: int = 1000, restarts: int = 1) -> Attack:
    """`inverting_gradients_published` with GradInversion's labels and the iterate of lowest energy, not the last.

    The Breaching framework, in which the paper runs it, keeps the lowest. Which weight of total variation the
    paper used could not be confirmed; 30,000 iterations and 5 restarts are its budget.
    """
    solver = SignedAdam(rate=0.1, iterations=iterations, schedule=StepDecay(), keep=Lowest())
    objective = Cosine() + tv * TotalVariation(share=1.0)
    return Attack(labels, (Stage(OneGradient(), Pixels(), objective, solver),), restarts=restarts)
