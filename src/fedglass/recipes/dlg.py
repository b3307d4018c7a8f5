"""Deep Leakage from Gradients [Zhu et al., 2019]."""

from __future__ import annotations

from fedglass.attack.attack import Attack, Stage
from fedglass.attack.defaults import run_by_default
from fedglass.attack.forward.gradients import OneGradient
from fedglass.attack.images.pixels import FreePixels
from fedglass.attack.labels.assigned import JointLabels
from fedglass.attack.labels.targets import SignRule
from fedglass.attack.solvers.adam import LBFGS
from fedglass.attack.terms.distance import SquaredError
from fedglass.core.registry import register
from fedglass.core.text import DLG, IDLG
from fedglass.core.types import Observation


@register("attacks", "dlg", summary="images and labels together, squared error, L-BFGS", paper=DLG)
def dlg(iterations: int = 300, restarts: int = 1) -> Attack:
    """Search images and labels together by squared error, L-BFGS at rate 1; no bounds, as in the paper's release."""
    stage = Stage(OneGradient(), FreePixels(), SquaredError(), LBFGS(iterations=iterations))
    return Attack(JointLabels(), (stage,), restarts=restarts)


def _not_one_example(observation: Observation) -> str:
    knows = observation.knows
    one = knows.examples == knows.clients == knows.local_steps == 1
    return "" if one else "it is for one example and one local step"


@run_by_default(_not_one_example)
@register("attacks", "idlg", summary="label from the sign rule, squared error, L-BFGS", paper=IDLG)
def idlg(iterations: int = 300, restarts: int = 1) -> Attack:
    """Take the label from the sign rule, then squared error with L-BFGS at rate 1 [Zhao et al., 2020], as released."""
    stage = Stage(OneGradient(), FreePixels(), SquaredError(), LBFGS(iterations=iterations))
    return Attack(SignRule(), (stage,), restarts=restarts)
