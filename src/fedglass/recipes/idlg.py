"""Improved Deep Leakage from Gradients [Zhao et al., 2020]."""

from __future__ import annotations

from fedglass.attack.attack import Attack, Stage
from fedglass.attack.forward.one_gradient import OneGradient
from fedglass.attack.images.pixels import FreePixels
from fedglass.attack.labels.sign_rule import SignRule
from fedglass.attack.solvers.lbfgs import LBFGS
from fedglass.attack.terms.distance import SquaredError
from fedglass.attack.unasked import unasked
from fedglass.core.papers import IDLG
from fedglass.core.registry import register
from fedglass.core.types import Observation


def _not_its_case(seen: Observation) -> str:
    knows = seen.knows
    one = knows.examples == knows.clients == knows.local_steps == 1
    return "" if one else "it is for one example and one local step"


@unasked(_not_its_case)
@register("attacks", "idlg", summary="label from the sign rule, squared error, L-BFGS", paper=IDLG)
def idlg(iterations: int = 300, restarts: int = 1) -> Attack:
    """The label from the sign rule, then squared error with L-BFGS at rate 1, as in the paper's release."""
    stage = Stage(OneGradient(), FreePixels(), SquaredError(), LBFGS(iterations=iterations))
    return Attack(SignRule(), (stage,), restarts=restarts)
