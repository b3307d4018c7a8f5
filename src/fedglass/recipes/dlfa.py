"""Data Leakage in Federated Averaging [Dimitrov et al., 2022], and the variants that it is compared with.

`dlfa_published` and its variants follow the paper's release, which differs from the print in the distance and in
the number of iterations. `setting` names one of the two sets of weights that the authors tuned.
"""

from __future__ import annotations

from fedglass.attack.attack import Attack, Stage
from fedglass.attack.forward.one_gradient import RepeatedGradient
from fedglass.attack.forward.unroll import BUDGET_MIB, Unroll, UnrollEpochs
from fedglass.attack.hypotheses import TryEpochs
from fedglass.attack.images.per_epoch import EpochPixels
from fedglass.attack.images.pixels import FreePixels
from fedglass.attack.labels.counts import InterpolatedCounts
from fedglass.attack.parts import Forward, Images, Labels
from fedglass.attack.solvers.adam import Adam
from fedglass.attack.terms.distance import Cosine
from fedglass.attack.terms.layers import LayeredSquaredError, Ramp
from fedglass.attack.terms.term import Term
from fedglass.core.papers import DLFA
from fedglass.core.registry import register
from fedglass.recipes.dlfa_settings import epoch_prior, settings

COUNTS = InterpolatedCounts()


@register("attacks", "dlfa_published", summary="simulates the local training, epoch prior; as released", paper=DLFA)
def dlfa_published(
    labels: Labels = COUNTS,
    setting: str = "femnist",
    iterations: int = 400,
    budget_mib: float = BUDGET_MIB,
    summary: str | None = None,
    distance: str | None = None,
) -> Attack:
    """Separate images for each epoch and the epoch-order-invariant prior: the paper's "Ours (prior)".

    `summary` (mean, max, conv_mean, conv_max) and `distance` (l1, l2) choose another prior of Table 4, with its weight.
    """
    prior = epoch_prior(setting, summary, distance)
    return _compose(Unroll(budget_mib), EpochPixels(), labels, setting, iterations, prior)


@register("attacks", "dlfa_no_prior", summary="simulates the local training, no prior over epochs", paper=DLFA)
def dlfa_no_prior(
    labels: Labels = COUNTS, setting: str = "femnist", iterations: int = 400, budget_mib: float = BUDGET_MIB
) -> Attack:
    """Separate images for each epoch, without the prior: "Ours (no prior)"."""
    return _compose(Unroll(budget_mib), EpochPixels(), labels, setting, iterations)


@register("attacks", "dlfa_shared", summary="simulates the local training, epochs share their images", paper=DLFA)
def dlfa_shared(
    labels: Labels = COUNTS, setting: str = "femnist", iterations: int = 400, budget_mib: float = BUDGET_MIB
) -> Attack:
    """The same images in each epoch [Geiping et al., 2020]: "Shared"."""
    return _compose(Unroll(budget_mib), FreePixels(), labels, setting, iterations)


@register("attacks", "dlfa_fedsgd_epoch", summary="simulates one full batch for each epoch", paper=DLFA)
def dlfa_fedsgd_epoch(
    labels: Labels = COUNTS, setting: str = "femnist", iterations: int = 400, budget_mib: float = BUDGET_MIB
) -> Attack:
    """One batch of all examples for each epoch: "FedSGD-Epoch".

    The same images in each epoch, as in the scripts of the release. The paper's text counts this variant among those
    that match and average separate ones, which recovered half as many in a trial; its tables agree with sharing:
    with a batch an epoch "Shared" and this one come out alike (Table 9).
    """
    return _compose(UnrollEpochs(budget_mib), FreePixels(), labels, setting, iterations)


@register("attacks", "dlfa_fedsgd", summary="the whole update as one gradient", paper=DLFA)
def dlfa_fedsgd(labels: Labels = COUNTS, setting: str = "femnist", iterations: int = 400) -> Attack:
    """The update as one gradient, no simulation [Geng et al., 2021]: "FedSGD"."""
    return _compose(RepeatedGradient(), FreePixels(), labels, setting, iterations)


@register(
    "attacks", "dlfa_unknown_epochs", summary="dlfa_published where epochs and batch size are unknown", paper=DLFA
)
def dlfa_unknown_epochs(
    labels: Labels = COUNTS, setting: str = "femnist", iterations: int = 400, budget_mib: float = BUDGET_MIB
) -> TryEpochs:
    """`dlfa_published` for every number of epochs that divides the number of steps; lowest energy wins."""
    return TryEpochs(dlfa_published(labels, setting, iterations, budget_mib))


@register(
    "attacks", "dlfa_printed", summary="simulates the local training, epoch prior; as printed (cosine)", paper=DLFA
)
def dlfa_printed(
    labels: Labels = COUNTS, setting: str = "femnist", iterations: int = 200, budget_mib: float = BUDGET_MIB
) -> Attack:
    """`dlfa_published` with the cosine distance and the 200 iterations that the paper prints."""
    chosen = settings(setting)
    objective = Cosine() + chosen.priors() + epoch_prior(setting)
    solver = Adam(rate=chosen.rate, iterations=iterations, schedule=chosen.decay)
    return Attack(labels, (Stage(Unroll(budget_mib), EpochPixels(), objective, solver),))


def _compose(
    forward: Forward, images: Images, labels: Labels, setting: str, iterations: int, prior: Term | None = None
) -> Attack:
    chosen = settings(setting)
    solver = Adam(rate=chosen.rate, iterations=iterations, schedule=chosen.decay)
    # The release counts its ramp in iterations, 200 of 400.
    objective = Ramp(LayeredSquaredError(), *chosen.ramp, until=200 / iterations) + chosen.priors()
    return Attack(labels, (Stage(forward, images, objective if prior is None else objective + prior, solver),))
