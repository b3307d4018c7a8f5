"""Deep Leakage from Gradients [Zhu et al., 2019]."""

from __future__ import annotations

from fedglass.attack.attack import Attack, Stage
from fedglass.attack.forward.one_gradient import OneGradient
from fedglass.attack.images.pixels import FreePixels
from fedglass.attack.labels.joint import JointLabels
from fedglass.attack.solvers.lbfgs import LBFGS
from fedglass.attack.terms.distance import SquaredError
from fedglass.core.papers import DLG
from fedglass.core.registry import register


@register("attacks", "dlg", summary="images and labels together, squared error, L-BFGS", paper=DLG)
def dlg(iterations: int = 300, restarts: int = 1) -> Attack:
    """Images and labels together, squared error, L-BFGS at rate 1; no bounds, as in the paper's release."""
    stage = Stage(OneGradient(), FreePixels(), SquaredError(), LBFGS(iterations=iterations))
    return Attack(JointLabels(), (stage,), restarts=restarts)
