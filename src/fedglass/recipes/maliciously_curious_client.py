"""The maliciously curious client: a participant reads through the server's aggregation rule.

What it sends itself, poison or not, is a behaviour of the federation; here it is one more update that it knows. The
paper's baseline, InvertGrad on the same step, is `inverting_gradients_published` on a peer's view: pixels of all
examples behind the step, the adversary's own among them, by cosine distance and total variation.
"""

from __future__ import annotations

from fedglass.attack.accepted import AcceptedClients, AllClients, AllOthers, GuessAccepted, OneOther, SomeOthers
from fedglass.attack.attack import Attack, Stage
from fedglass.attack.best_of import AnyAttack, AttacksByRule, BestOf, GuessRule
from fedglass.attack.defaults import path_options
from fedglass.attack.forward.through import (
    Combination,
    OneClient,
    SoftMedian,
    SupposedMean,
    SupposedMedian,
    SupposedTrimmedMean,
    Through,
)
from fedglass.attack.images.latent import NONE, OWN, Latent, decoder_named, located_decoder
from fedglass.attack.images.pixels import Pixels
from fedglass.attack.labels.assigned import AssignedLabels
from fedglass.attack.labels.counts import LastLayerCounts
from fedglass.attack.needs import needs_of
from fedglass.attack.participant import KeepOwnUpdate, LabelsOfOthers
from fedglass.attack.parts import Images, Labels
from fedglass.attack.solvers.adam import Adam, SignedAdam
from fedglass.attack.solvers.schedules import CosineDecay
from fedglass.attack.terms.distance import Cosine, SquaredError
from fedglass.attack.terms.priors import TotalVariation
from fedglass.core.errors import unknown_name
from fedglass.core.registry import register
from fedglass.core.text import MALICIOUSLY_CURIOUS_CLIENT

LAST_LAYER = LastLayerCounts()
OWN_UPDATE = ("as_sent", "unknown")


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
    own: str = "as_sent",
    tv: float = 0.001,
    iterations: int = 300,
) -> AnyAttack:
    """Each client is simulated, and a differentiable rule combines them with the adversary's own update as it was sent.

    `rule` names the one that the server uses, where that is known: `mean`, `median`, `trimmed_mean` (which drops
    `byzantine` at each end), `soft_median` or `one_client`; `mean_without_own` and `mean_of_some` stand for rules that
    drop clients, where it is not known whose updates got through. `any` tries them all; the paper tries the mean, the
    soft median and one client. Labels that are not told are assigned to clients by energy where the rule is no mean.
    With `own = "unknown"` the adversary does not use what it sent, and looks for its own images as well, as the paper
    does. Images are pixels; the paper's are an autoencoder's.
    """
    if own not in OWN_UPDATE:
        raise unknown_name("own", own, OWN_UPDATE)
    supposed: dict[str, tuple[Combination, AcceptedClients]] = {
        "mean": (SupposedMean(), AllClients()),
        "median": (SupposedMedian(), AllClients()),
        "trimmed_mean": (SupposedTrimmedMean(byzantine), AllClients()),
        "soft_median": (SoftMedian(), AllClients()),
        "one_client": (OneClient(), OneOther()),
        "mean_without_own": (SupposedMean(), AllOthers()),
        "mean_of_some": (SupposedMean(), SomeOthers()),
    }
    if rule != "any" and rule not in supposed:
        raise unknown_name("rule", rule, ["any", *supposed])
    solver = SignedAdam(rate=0.1, iterations=iterations, schedule=CosineDecay())
    objective = Cosine() + tv * TotalVariation()
    labels_known = any(fact.oracle for fact in needs_of(labels))

    def supposing(combination: Combination, choice: AcceptedClients) -> AnyAttack:
        mean, forward = isinstance(combination, SupposedMean), Through(combination, own=own == "as_sent")
        other_labels = LabelsOfOthers(labels) if own == "as_sent" else labels
        assigned = (
            other_labels
            if labels_known or isinstance(combination, SupposedMean | OneClient)
            else AssignedLabels(other_labels, forward, Cosine())
        )
        attack = Attack(assigned, (Stage(forward, Pixels(), objective, solver),))
        others: AnyAttack = BestOf(attack, KeepOwnUpdate()) if own == "as_sent" else attack
        return BestOf(others, GuessAccepted(choice, mean=mean))

    names = supposed if rule == "any" else [rule]
    return BestOf(tuple((name, supposing(*supposed[name])) for name in names), GuessRule(finalists=2))


@path_options(decoder=located_decoder)
@register(
    "attacks",
    "maliciously_curious_client_published",
    summary="a peer looks for codes of an autoencoder through mean, soft median and one client, by squared error",
    paper=MALICIOUSLY_CURIOUS_CLIENT,
)
def maliciously_curious_client_published(
    labels: Labels = LAST_LAYER, decoder: str = OWN, rate: float = 0.01, iterations: int = 1000
) -> BestOf[AttacksByRule]:
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
    attacks = (
        (name, Attack(labels, (Stage(Through(surrogate), images, SquaredError(), solver),)))
        for name, surrogate in surrogates
    )
    return BestOf(tuple(attacks), GuessRule())
