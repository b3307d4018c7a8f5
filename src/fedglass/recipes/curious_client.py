"""The curious client: a participant inverts the step of the global model [Wilson et al., 2024].

`curious_client_published` follows the release, which differs from the paper in labels and learning rate.
"""

from __future__ import annotations

from fedglass.attack.attack import Attack, Stage
from fedglass.attack.best_of import AnyAttack, BestOf
from fedglass.attack.forward.unroll import SUPER_CLIENT_BUDGET_MIB, EachClient, SuperClient
from fedglass.attack.images.pixels import BoundedLowResolution, LowResolution
from fedglass.attack.labels.counts import InterpolatedCounts, LastLayerCounts
from fedglass.attack.parts import Forward, Labels
from fedglass.attack.peer_knowledge import FixOwnImages, FixOwnLabels, SubtractOwnUpdate
from fedglass.attack.search import SearchByOwnImages
from fedglass.attack.solvers.adam import Adam, SignedAdam
from fedglass.attack.solvers.schedules import CosineDecay
from fedglass.attack.terms.distance import Cosine, SquaredError
from fedglass.attack.terms.priors import TotalVariation
from fedglass.core.errors import unknown_name
from fedglass.core.registry import register
from fedglass.core.text import CURIOUS_CLIENT

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


def _published(forward: Forward, labels: Labels, factor: int, iterations: int) -> Attack:
    solver = Adam(rate=0.1, iterations=iterations, schedule=CosineDecay(floor=0.1))
    return Attack(labels, (Stage(forward, LowResolution(factor), SquaredError(), solver),))
