"""The curious client: a participant inverts the step of the global model [Wilson et al., 2024].

`curious_client_published` follows the release, which differs from the paper in labels and learning rate.

`rog` has images of low resolution, enlarged inside the search, then sharpened by a GAN [Yue et al., 2023].

`fedinverse`: a peer inverts the global model, at a late stage of training [Wu et al., 2024].

Model inversion finds images that the model takes for a class. They are representatives of the class, not the examples
of a client: compare them with blind guesses such as the means of the classes before you call them a leak.
"""

from __future__ import annotations

from fedglass.attack.attack import Attack, Stage
from fedglass.attack.best_of import AnyAttack, BestOf
from fedglass.attack.defaults import path_options
from fedglass.attack.forward.messages import GlobalModel
from fedglass.attack.forward.unroll import SUPER_CLIENT_BUDGET_MIB, EachClient, SuperClient
from fedglass.attack.hypotheses import SearchByOwnImages
from fedglass.attack.images.latent import GanCodes
from fedglass.attack.images.pixels import BoundedLowResolution, LowResolution, Pixels
from fedglass.attack.labels.counts import InterpolatedCounts, LastLayerCounts
from fedglass.attack.parts import Forward, Images, Labels
from fedglass.attack.peer_knowledge import FixOwnImages, FixOwnLabels, SubtractOwnUpdate
from fedglass.attack.refine.gan import GanEnhancement
from fedglass.attack.solvers.adam import Adam, Momentum, SignedAdam
from fedglass.attack.solvers.schedules import CosineDecay
from fedglass.attack.terms.distance import Cosine, SquaredError
from fedglass.attack.terms.priors import BatchDependence, ClassLoss, CriticScore, TotalVariation
from fedglass.attack.terms.term import Term
from fedglass.core.errors import unknown_name
from fedglass.core.registry import register
from fedglass.core.text import CURIOUS_CLIENT, FEDINVERSE, ROG
from fedglass.diffusion.gan import NO_GAN, located_gan, stored_gan

INTERPOLATED, LAST_LAYER = InterpolatedCounts(), LastLayerCounts()


@register(
    "attacks",
    "curious_client",
    summary="a peer's own update subtracted, super-client, cosine distance and total variation",
    paper=CURIOUS_CLIENT,
)
def curious_client(
    labels: Labels = LAST_LAYER,
    own: str = "subtract",
    factor: int = 1,
    tv: float = 0.03,
    iterations: int = 100,
    budget_mib: float = SUPER_CLIENT_BUDGET_MIB,
) -> AnyAttack:
    """Return the paper's super-client with another search: cosine distance, total variation, signed Adam, pixel bounds.

    `own` decides about a participant's own images: `subtract` subtracts its known update from the message, `fixed`
    holds them fixed, `along` reconstructs them with the others, as the paper does. With the prior, full resolution
    (`factor = 1`) was better than enlarged images in trials at 32 and 64 pixels.
    """
    solver = SignedAdam(rate=0.1, iterations=iterations, schedule=CosineDecay())
    images, objective = BoundedLowResolution(factor), Cosine() + tv * TotalVariation()
    alone = Attack(labels, (Stage(SuperClient(budget_mib), images, objective, solver),))
    with_own_images = Stage(SuperClient(budget_mib), FixOwnImages(images), objective, solver)
    fixed = Attack(FixOwnLabels(labels), (with_own_images,))
    ways: dict[str, AnyAttack] = {"subtract": BestOf(alone, SubtractOwnUpdate()), "fixed": fixed, "along": alone}
    if own not in ways:
        raise unknown_name("own", own, ways)
    return ways[own]


@register(
    "attacks",
    "curious_client_published",
    summary="the global model's step as that of one super-client, images at low resolution; as released",
    paper=CURIOUS_CLIENT,
)
def curious_client_published(
    labels: Labels = INTERPOLATED,
    factor: int = 4,
    iterations: int = 100,
    budget_mib: float = SUPER_CLIENT_BUDGET_MIB,
    grouped: bool = False,
) -> Attack:
    """Search all images behind the step, also the adversary's own, enlarged from 1/factor; last iterate, no prior.

    The release uses the true labels (`labels = "oracle"`), where the paper inverts them analytically: its networks have
    no bias in the last layer, which that needs, so here they are counted from the weights. `grouped` simulates each
    client with its own examples, the upper bound of Appendix F. ORACLE: it needs `labels = "oracle"`, which assigns the
    labels to clients.
    """
    forward = EachClient(budget_mib) if grouped else SuperClient(budget_mib)
    return _published(forward, labels, factor, iterations)


@register(
    "attacks",
    "curious_client_search",
    summary="curious_client where learning rate or number of images are unknown: a peer's own images lead the search",
    paper=CURIOUS_CLIENT,
)
def curious_client_search(
    labels: Labels = LAST_LAYER, factor: int = 4, iterations: int = 100, trial: int = 30, zooms: int = 2
) -> BestOf[AnyAttack]:
    """Find the rate by trials of the published attack (its squared error depends on the rate), then run ours."""
    probe = _published(SuperClient(), labels, factor, trial)
    return BestOf(curious_client(labels, iterations=iterations), SearchByOwnImages(probe, zooms=zooms))


def _published(forward: Forward, labels: Labels, factor: int, iterations: int, rate: float = 0.1) -> Attack:
    solver = Adam(rate=rate, iterations=iterations, schedule=CosineDecay(floor=0.1))
    return Attack(labels, (Stage(forward, LowResolution(factor), SquaredError(), solver),))


@path_options(enhancer=located_gan)
@register("attacks", "rog", summary="images at low resolution by squared error, sharpened by a GAN", paper=ROG)
def rog(
    labels: Labels = INTERPOLATED, enhancer: str = NO_GAN, factor: int = 4, rate: float = 0.05, iterations: int = 100
) -> Attack:
    """Search small images through their bicubic enlargement, on all examples in every local step; last iterate.

    `enhancer` is a folder of `fedglass train gan`; `none` leaves the images as they were found. REDUCED: the enhancer
    is a small network of our training, see `diffusion.gan.Enhancer`. The release uses the true labels
    (`labels = "oracle"`); here they are counted from the weights.
    """
    attack = _published(SuperClient(), labels, factor, iterations, rate)
    return attack if enhancer == NO_GAN else attack.refined_by((GanEnhancement(stored_gan(enhancer)),))


@path_options(generator=located_gan)
@register(
    "attacks",
    "fedinverse",
    summary="model inversion: images that the global model takes for each class, drawn by a GAN",
    paper=FEDINVERSE,
)
def fedinverse(
    labels: Labels = LAST_LAYER,
    generator: str = NO_GAN,
    identity: float = 100.0,
    hsic: float = 0.05,
    rate: float = 0.02,
    iterations: int = 1500,
) -> Attack:
    """Minimise the critic's loss + `identity` times the class loss + `hsic` times the dependence within the batch.

    `hsic = 0` is plain model inversion (MI, the release's GMI), any other value MI-HSIC. `generator` is a folder of
    `fedglass train gan --kind codes`; with `none` the unknowns are pixels, and total variation takes the critic's
    place. The message gives the labels and the global model, and nothing else. As in the release: momentum 0.9, codes
    in [-1, 1], rate, weights and iterations. Of its three attackers (GMI, KED-MI, VMI) only GMI is built.
    """
    images: Images = Pixels()
    prior: Term = TotalVariation()
    if generator != NO_GAN:
        gan = stored_gan(generator)
        images, prior = GanCodes(gan), CriticScore(gan)
    objective = prior + identity * ClassLoss()
    if hsic:
        objective = objective + hsic * BatchDependence()
    return Attack(labels, (Stage(GlobalModel(), images, objective, Momentum(rate, iterations)),))
