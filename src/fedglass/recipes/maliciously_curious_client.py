"""The maliciously curious client: a participant reads through the server's aggregation rule.

What it sends itself, poison or not, is a behaviour of the federation; here it is one more update that it knows.
"""

from __future__ import annotations

from fedglass.attack.attack import Attack, Stage
from fedglass.attack.forward.combine import (
    Combination,
    OneClient,
    SoftMedian,
    SupposedMean,
    SupposedMedian,
    SupposedTrimmedMean,
)
from fedglass.attack.forward.through import Through
from fedglass.attack.hypotheses import AnyAttack
from fedglass.attack.images.pixels import Pixels
from fedglass.attack.labels.own_counts import LastLayerCounts
from fedglass.attack.own import LabelsOfOthers, OwnAsSent
from fedglass.attack.parts import Labels
from fedglass.attack.rules import TryRules
from fedglass.attack.solvers.adam import SignedAdam
from fedglass.attack.solvers.schedules import CosineDecay
from fedglass.attack.terms.distance import Cosine
from fedglass.attack.terms.total_variation import TotalVariation
from fedglass.core.errors import unknown_name
from fedglass.core.papers import MALICIOUSLY_CURIOUS_CLIENT
from fedglass.core.registry import register

LAST_LAYER = LastLayerCounts()


@register(
    "attacks",
    "maliciously_curious_client",
    summary="a peer reads through the aggregation rule: several are supposed, the lowest energy wins",
    paper=MALICIOUSLY_CURIOUS_CLIENT,
)
def maliciously_curious_client(
    labels: Labels = LAST_LAYER,
    rule: str = "any",
    byzantine: int = 1,
    tv: float = 0.001,
    iterations: int = 300,
) -> AnyAttack:
    """Each client is simulated, and a differentiable rule combines them with the adversary's own update as it was sent.

    `rule` names the one that the server uses, where that is known: `mean`, `median`, `trimmed_mean` (which drops
    `byzantine` at each end), `soft_median` or `one_client`. `any` tries them all; the paper tries the mean, the soft
    median and one client. Images are pixels; the paper's are an autoencoder's.
    """
    rules: dict[str, Combination] = {
        "mean": SupposedMean(),
        "median": SupposedMedian(),
        "trimmed_mean": SupposedTrimmedMean(byzantine),
        "soft_median": SoftMedian(),
        "one_client": OneClient(),
    }
    if rule == "any":
        chosen = rules
    elif rule in rules:
        chosen = {rule: rules[rule]}
    else:
        raise unknown_name("rule", rule, ["any", *rules])
    solver = SignedAdam(rate=0.1, iterations=iterations, schedule=CosineDecay())
    objective = Cosine() + tv * TotalVariation()

    def supposing(combination: Combination) -> AnyAttack:
        stage = Stage(Through(combination, own=True), Pixels(), objective, solver)
        return OwnAsSent(Attack(LabelsOfOthers(labels), (stage,)))

    return TryRules(tuple((name, supposing(combination)) for name, combination in chosen.items()))
