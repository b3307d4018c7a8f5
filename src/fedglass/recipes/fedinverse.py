"""FedInverse: a peer inverts the global model, at a late stage of training [Wu et al., 2024].

Model inversion finds images that the model takes for a class. They are representatives of the class, not the examples
of a client: compare them with blind guesses such as the means of the classes before you call them a leak.
"""

from __future__ import annotations

from fedglass.attack.attack import Attack, Stage
from fedglass.attack.defaults import path_options
from fedglass.attack.forward.global_model import GlobalModel
from fedglass.attack.images.codes import GanCodes
from fedglass.attack.images.pixels import Pixels
from fedglass.attack.labels.counts import LastLayerCounts
from fedglass.attack.parts import Images, Labels
from fedglass.attack.solvers.adam import Momentum
from fedglass.attack.terms.inversion import BatchDependence, ClassLoss, CriticScore
from fedglass.attack.terms.priors import TotalVariation
from fedglass.attack.terms.term import Term
from fedglass.core.registry import register
from fedglass.core.text import FEDINVERSE
from fedglass.diffusion.gan import NO_GAN, located_gan, stored_gan

LAST_LAYER = LastLayerCounts()


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
