"""Inverting Gradients [Geiping et al., 2020]."""

from __future__ import annotations

from fedglass.attack.attack import Attack, Stage
from fedglass.attack.defaults import run_by_default
from fedglass.attack.forward.gradients import ObservedResidual, OneGradient
from fedglass.attack.forward.messages import ThroughFilter
from fedglass.attack.images.pixels import Pixels
from fedglass.attack.labels.targets import SignRule
from fedglass.attack.parts import Forward, Labels
from fedglass.attack.solvers.adam import SignedAdam
from fedglass.attack.solvers.schedules import StepDecay
from fedglass.attack.terms.distance import Cosine
from fedglass.attack.terms.priors import TotalVariation
from fedglass.attack.terms.term import Term
from fedglass.core.registry import register

PAPER = "Geiping, Bauermeister, Dröge, Moeller: Inverting Gradients, NeurIPS 2020, https://arxiv.org/abs/2003.14053"
SIGN_RULE = SignRule()


@run_by_default(lambda observation: "")
@register(
    "attacks",
    "inverting_gradients",
    summary="cosine distance and total variation, signed Adam, observed residual",
    paper=PAPER,
)
def inverting_gradients(
    labels: Labels = SIGN_RULE, tv: float = 0.01, iterations: int = 1000, restarts: int = 1
) -> Attack:
    """Return the paper's attack, with the residual of a single example read from the message.

    Where a filter of the update is declared, predictions go through it.

    `tv` weighs the mean of mean|dx| and mean|dy|. On more than one example it differs from the published one only in
    that factor.
    """
    return _compose(
        ThroughFilter(ObservedResidual()), labels, Cosine() + tv * TotalVariation(share=0.5), iterations, restarts
    )


@register(
    "attacks", "inverting_gradients_published", summary="cosine distance and total variation, signed Adam", paper=PAPER
)
def inverting_gradients_published(
    labels: Labels = SIGN_RULE, tv: float = 0.01, iterations: int = 4800, restarts: int = 1
) -> Attack:
    """Use cosine distance and total variation, signed Adam at 0.1 with three drops, projection onto the bounds.

    The paper runs 4,800 to 24,000 iterations and tunes `tv` between 1e-6 and 1e-1 for each setting.
    """
    return _compose(OneGradient(), labels, Cosine() + tv * TotalVariation(share=1.0), iterations, restarts)


def _compose(forward: Forward, labels: Labels, objective: Term, iterations: int, restarts: int) -> Attack:
    solver = SignedAdam(rate=0.1, iterations=iterations, schedule=StepDecay())
    return Attack(labels, (Stage(forward, Pixels(), objective, solver),), restarts=restarts)
