"""Inverting Gradients [Geiping et al., 2020]."""

from __future__ import annotations

from fedglass.attack.attack import Attack, Stage
from fedglass.attack.forward.one_gradient import OneGradient
from fedglass.attack.images.pixels import Pixels
from fedglass.attack.labels.sign_rule import SignRule
from fedglass.attack.parts import Labels
from fedglass.attack.solvers.adam import SignedAdam
from fedglass.attack.solvers.schedules import StepDecay
from fedglass.attack.terms.distance import Cosine
from fedglass.attack.terms.total_variation import TotalVariation

SIGN_RULE = SignRule()


def inverting_gradients(
    labels: Labels = SIGN_RULE, tv: float = 0.01, iterations: int = 1000, restarts: int = 1
) -> Attack:
    """Cosine distance and total variation, signed Adam at 0.1 with three drops, projection onto the bounds.

    The paper runs 4,800 to 24,000 iterations and tunes `tv` between 1e-6 and 1e-1 for each setting.
    """
    solver = SignedAdam(rate=0.1, iterations=iterations, schedule=StepDecay())
    stage = Stage(OneGradient(), Pixels(), Cosine() + tv * TotalVariation(), solver)
    return Attack(labels, (stage,), restarts=restarts)
