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

MINIMUM_RULE = MinimumRule()


def idlg_adam(labels: Labels = MINIMUM_RULE, rate: float = 0.1, iterations: int = 1000, restarts: int = 1) -> Attack:
    """Squared error with Adam in place of L-BFGS, for the sake of deep networks.

    The paper states Adam and 30,000 iterations; rate, decay and bounds could not be confirmed and are those of
    its other baselines. No total variation: iDLG has none, and the paper gives no weight for it.
    """
    solver = Adam(rate=rate, iterations=iterations, schedule=StepDecay(), keep=Lowest())
    return Attack(labels, (Stage(OneGradient(), Pixels(), SquaredError(), solver),), restarts=restarts)
