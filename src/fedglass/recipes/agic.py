"""AGIC: Approximate Gradient Inversion Attack on Federated Learning [Xu et al., 2022]."""

from __future__ import annotations

from fedglass.attack.attack import Attack, Stage
from fedglass.attack.forward.gradients import OneGradient
from fedglass.attack.images.pixels import Pixels
from fedglass.attack.labels.signs import MinimumRule
from fedglass.attack.parts import Labels
from fedglass.attack.solvers.adam import SignedAdam
from fedglass.attack.solvers.schedules import Lowest, StepDecay
from fedglass.attack.terms.layers import LayeredCosine
from fedglass.attack.terms.priors import TotalVariation
from fedglass.core.registry import register

MINIMUM_RULE = MinimumRule()


@register(
    "attacks",
    "agic",
    summary="cosine distance with weights that increase with depth, local steps taken as one",
    paper="Xu, Hong, Huang, Chen, Decouchant: AGIC, SRDS 2022, https://arxiv.org/abs/2204.13784",
)
def agic(labels: Labels = MINIMUM_RULE, tv: float = 0.01, iterations: int = 1000, restarts: int = 1) -> Attack:
    """Return Inverting Gradients with layers that weigh more towards the output; local steps count as one.

    The update of several local steps is approximated by the one gradient of all examples at the weights before, instead
    of a simulation. The paper can also join the messages of several rounds, which one message does not offer. Its code
    was not found in public and its exact weights could not be confirmed: those of the layers are those of
    `LayeredCosine`, all local steps weigh the same.
    """
    solver = SignedAdam(rate=0.1, iterations=iterations, schedule=StepDecay(), keep=Lowest())
    objective = LayeredCosine() + tv * TotalVariation(share=1.0)
    return Attack(labels, (Stage(OneGradient(), Pixels(), objective, solver),), restarts=restarts)
