"""The maliciously curious client: a participant reads through the server's aggregation rule.

What it sends itself, poison or not, is a behaviour of the federation; here it is one more update that it knows. The
paper's baseline, InvertGrad on the same step, is `inverting_gradients_published` on a peer's view: pixels of all
examples behind the step, the adversary's own among them, by cosine distance and total variation.
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
from fedglass.attack.images.decoders import NONE, OWN, decoder_named
from fedglass.attack.images.latent import Latent
from fedglass.attack.images.pixels import Pixels
from fedglass.attack.labels.own_counts import LastLayerCounts
from fedglass.attack.own import LabelsOfOthers, OwnAsSent
from fedglass.attack.parts import Images, Labels
from fedglass.attack.rules import TryRules
from fedglass.attack.solvers.adam import Adam, SignedAdam
from fedglass.attack.solvers.schedules import CosineDecay
from fedglass.attack.terms.distance import Cosine, SquaredError
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


@register(
    "attacks",
    "maliciously_curious_client_published",
    summary="a peer looks for codes of an autoencoder through mean, soft median and one client, by squared error",
    paper=MALICIOUSLY_CURIOUS_CLIENT,
)
def maliciously_curious_client_published(
    labels: Labels = LAST_LAYER, decoder: str = OWN, rate: float = 0.01, iterations: int = 1000
) -> TryRules:
    """All clients are simulated, the adversary among them; three surrogates are tried, the lowest energy wins [Eq. 22].

    `decoder` is a folder of `fedglass train autoencoder`, `own` (trained on the adversary's own examples) or `none`
    (pixels, the ablation). The paper has Adam, whose rate it chooses between 1e-4 and 1e-2. It does not say, and
    chosen here are: the decoder's design and what it has seen, where labels come from (counted in the last layer), the
    soft median's temperature, the number of iterations, a constant rate, and that pseudo-Krum's client, which is drawn
    at random, is the first one throughout: from random codes all are alike, unless labels are told with their clients.
    """
    images: Images = Pixels() if decoder == NONE else Latent(decoder_named(decoder))
    solver = Adam(rate=rate, iterations=iterations)
    surrogates = (("mean", SupposedMean()), ("soft_median", SoftMedian()), ("one_client", OneClient()))
    return TryRules(
        tuple(
            (name, Attack(labels, (Stage(Through(surrogate), images, SquaredError(), solver),)))
            for name, surrogate in surrogates
        )
    )
