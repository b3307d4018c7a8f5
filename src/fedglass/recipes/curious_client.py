"""The curious client: a participant inverts the step of the global model [Curious client, 2025]."""

from __future__ import annotations

from fedglass.attack.attack import Attack, Stage
from fedglass.attack.forward.super_client import BUDGET_MIB, SuperClient
from fedglass.attack.images.low_resolution import LowResolution
from fedglass.attack.labels.counts import InterpolatedCounts
from fedglass.attack.parts import Labels
from fedglass.attack.solvers.adam import Adam
from fedglass.attack.solvers.schedules import CosineDecay
from fedglass.attack.terms.distance import SquaredError
from fedglass.core.papers import CURIOUS_CLIENT
from fedglass.core.registry import register

COUNTS = InterpolatedCounts()


@register(
    "attacks",
    "curious_client_published",
    summary="the global model's step as that of one super-client, images at low resolution; as released",
    paper=CURIOUS_CLIENT,
)
def curious_client_published(
    labels: Labels = COUNTS, factor: int = 4, iterations: int = 100, budget_mib: float = BUDGET_MIB
) -> Attack:
    """All images behind the step, the adversary's own among them, enlarged from 1/factor; last iterate, no prior.

    The release is told the true labels (`labels = "oracle"`), where the paper has them inverted analytically: its
    networks have no bias in the last layer, which that needs, so that here they are counted from the weights.
    """
    solver = Adam(rate=0.1, iterations=iterations, schedule=CosineDecay(floor=0.1))
    return Attack(labels, (Stage(SuperClient(budget_mib), LowResolution(factor), SquaredError(), solver),))
