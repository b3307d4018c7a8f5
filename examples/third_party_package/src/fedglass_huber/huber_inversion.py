"""Gradient inversion by the Huber distance."""

from __future__ import annotations

from fedglass import Attack, register
from fedglass.attack.attack import Stage
from fedglass.attack.forward.gradients import OneGradient
from fedglass.attack.images.pixels import Pixels
from fedglass.attack.labels.targets import SignRule
from fedglass.attack.solvers.adam import Adam
from fedglass.attack.terms.priors import TotalVariation
from fedglass_huber.huber import Huber


@register(
    "attacks",
    "huber_inversion",
    summary="the label from the sign rule, Huber distance and total variation, Adam",
    paper="Huber: Robust Estimation of a Location Parameter, 1964, https://doi.org/10.1214/aoms/1177703732",
)
def huber_inversion(delta: float = 0.01, tv: float = 1e-4, iterations: int = 500) -> Attack:
    """Composes parts of fedglass with one of its own."""
    objective = Huber(delta) + tv * TotalVariation(share=1.0)
    return Attack(SignRule(), (Stage(OneGradient(), Pixels(), objective, Adam(rate=0.1, iterations=iterations)),))
