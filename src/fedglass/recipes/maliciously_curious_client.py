"""The maliciously curious client: a participant reads through the server's aggregation rule.

The adversary's own update, poisoned or not, is a behaviour of the federation; here it is one more known update. The
paper's baseline, InvertGrad on the same step, is `inverting_gradients_published` on a peer's view: pixels of all
examples behind the step, the adversary's own among them, by cosine distance and total variation.
"""

from __future__ import annotations

from fedglass.attack.attack import Attack, Stage
from fedglass.attack.best_of import AnyAttack, AttacksByRule, BestOf, GuessRule
from fedglass.attack.defaults import path_options
from fedglass.attack.forward.messages import (
    Combination,
    OneClient,
    SoftMedian,
    SupposedMean,
    SupposedMedian,
    SupposedTrimmedMean,
    Through,
)
from fedglass.attack.hypotheses import AcceptedClients, AllClients, AllOthers, GuessAccepted, OneOther, SomeOthers
from fedglass.attack.images.latent import NONE, OWN, Latent, decoder_named, located_decoder
from fedglass.attack.images.pixels import Pixels
from fedglass.attack.labels.assigned import AssignedLabels
from fedglass.attack.labels.counts import LastLayerCounts
from fedglass.attack.parts import Images, Labels, needs_of
from fedglass.attack.peer_knowledge import KeepOwnUpdate, LabelsOfOthers
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
    summary="a peer reads through the aggregation rule: several are tried, the lowest energy wins",
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
    """Simulate each client, and combine them by a differentiable rule with the adversary's own update as it was sent.

    `rule` names the server's rule, if it is known: `mean`, `median`, `trimmed_mean` (which drops `byzantine` at each
    end), `soft_median` or `one_client`; `mean_without_own` and `mean_of_some` stand for rules that drop unknown
    clients. `any` tries them all; the paper tries the mean, the soft median and one client. Unknown labels are assigned
    to clients by energy if the rule is not a mean. With `own = "unknown"` the adversary ignores its own update and
    searches its own images as well, as the paper does. Images are pixels; the paper's are an autoencoder's.
    """
    if own not in OWN_UPDATE:
        raise unknown_name("own", own, OWN_UPDATE)
    supposed = _supposed_rules(byzantine)
    if rule != "any" and rule not in supposed:
        raise unknown_name("rule", rule, ["any", *supposed])
    solver = SignedAdam(rate=0.1, iterations=iterations, schedule=CosineDecay())
    objective = Cosine() + tv * TotalVariation()

    def supposing(combination: Combination, choice: AcceptedClients) -> AnyAttack:
        forward = Through(combination, own=own == "as_sent")
        other_labels = LabelsOfOthers(labels) if own == "as_sent" else labels
        attack = Attack(_assigned(other_labels, labels, forward), (Stage(forward, Pixels(), objective, solver),))
        reading: AnyAttack = BestOf(attack, KeepOwnUpdate()) if own == "as_sent" else attack
        return BestOf(reading, GuessAccepted(choice, mean=isinstance(combination, SupposedMean)))

    names = supposed if rule == "any" else [rule]
    return BestOf(tuple((name, supposing(*supposed[name])) for name in names), GuessRule(finalists=2))


def _supposed_rules(byzantine: int) -> dict[str, tuple[Combination, AcceptedClients]]:
    """Return the rules that can be tried by name: a differentiable combination, and the clients that it accepts."""
    return {
        "mean": (SupposedMean(), AllClients()),
        "median": (SupposedMedian(), AllClients()),
        "trimmed_mean": (SupposedTrimmedMean(byzantine), AllClients()),
        "soft_median": (SoftMedian(), AllClients()),
        "one_client": (OneClient(), OneOther()),
        "mean_without_own": (SupposedMean(), AllOthers()),
        "mean_of_some": (SupposedMean(), SomeOthers()),
    }


def _assigned(other_labels: Labels, labels: Labels, forward: Through) -> Labels:
    """Return the labels, assigned to clients by energy unless they are known or the rule does not need it."""
    labels_known = any(fact.oracle for fact in needs_of(labels))
    if labels_known or isinstance(forward.combination, SupposedMean | OneClient):
        return other_labels
    return AssignedLabels(other_labels, forward, Cosine())


@path_options(decoder=located_decoder)
@register(
    "attacks",
    "maliciously_curious_client_published",
    summary="a peer searches codes of an autoencoder through mean, soft median and one client, by squared error",
    paper=MALICIOUSLY_CURIOUS_CLIENT,
)
def maliciously_curious_client_published(
    labels: Labels = LAST_LAYER, decoder: str = OWN, rate: float = 0.01, iterations: int = 1000
) -> BestOf[AttacksByRule]:
    """Simulate all clients, also the adversary; try three surrogates, the lowest energy wins [Eq. 22].

    `decoder` is a folder of `fedglass train autoencoder`, `own` (trained on the adversary's own examples) or `none`
    (pixels, the ablation). The paper uses Adam with a rate between 1e-4 and 1e-2. It leaves these open, and they are
    our choices: the decoder's design and training data, the source of labels (counted in the last layer), the soft
    median's temperature, the number of iterations, and a constant rate. Pseudo-Krum's client, which the paper draws at
    random, is always the first one here: from random codes all are alike, unless labels come with their clients.
    """
    images: Images = Pixels() if decoder == NONE else Latent(decoder_named(decoder))
    solver = Adam(rate=rate, iterations=iterations)
    surrogates = (("mean", SupposedMean()), ("soft_median", SoftMedian()), ("one_client", OneClient()))
    attacks = (
        (name, Attack(labels, (Stage(Through(surrogate), images, SquaredError(), solver),)))
        for name, surrogate in surrogates
    )
    return BestOf(tuple(attacks), GuessRule())
