"""iDLG [Zhao et al., 2020] as the coarse-to-fine paper runs it [K. Zhu et al., 2025, App. A]."""

from __future__ import annotations

from fedglass.attack.attack import Attack, Stage
from fedglass.attack.forward.one_gradient import OneGradient
from fedglass.attack.images.pixels import Pixels
from fedglass.attack.labels.minimum_rule import MinimumRule
from fedglass.attack.parts import Labels
from fedglass.attack.solvers.adam import Adam
from fedglass.attack.solvers.keep import Lowest
from fedglass.attack.solvers.schedules import StepDecay
from fedglass.attack.terms.distance import SquaredError
from fedglass.attack.terms.total_variation import TotalVariation
from fedglass.core.papers import IDLG
from fedglass.core.registry import register

MINIMUM_RULE = MinimumRule()


@register("attacks", "idlg_adam", summary="idlg with Adam and GradInversion's labels, for deep networks", paper=IDLG)
def idlg_adam(
    labels: Labels = MINIMUM_RULE, tv: float = 0.01, rate: float = 0.1, iterations: int = 1000, restarts: int = 1
) -> Attack:
    """Squared error with Adam in place of L-BFGS, for the sake of deep networks, and total variation.

    The paper states Adam, 30,000 iterations and total variation in all attacks (Sec. 5.1); its weight, the rate, the
    decay and the bounds could not be confirmed and are those of its other baselines. iDLG itself has no such term.
    """
    solver = Adam(rate=rate, iterations=iterations, schedule=StepDecay(), keep=Lowest())
    objective = SquaredError() + tv * TotalVariation(share=1.0)
    return Attack(labels, (Stage(OneGradient(), Pixels(), objective, solver),), restarts=restarts)
