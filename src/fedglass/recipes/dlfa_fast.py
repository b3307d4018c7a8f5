"""Data Leakage in Federated Averaging [Dimitrov et al., 2022], started from a surrogate model [Zhu et al., 2023]."""

from __future__ import annotations

import math

from fedglass.attack.attack import Attack, Stage
from fedglass.attack.forward.unroll import BUDGET_MIB, Unroll, UnrollEpochs
from fedglass.attack.images.per_epoch import BoundedEpochPixels, OrderedEpochPixels
from fedglass.attack.images.pixels import Pixels
from fedglass.attack.needs import needs_of
from fedglass.attack.parts import Images, Labels
from fedglass.attack.solvers.adam import Adam
from fedglass.attack.solvers.schedules import CosineDecay
from fedglass.attack.terms.distance import Cosine
from fedglass.attack.terms.epoch_prior import SquaredEpochPrior
from fedglass.attack.terms.term import Term
from fedglass.attack.terms.total_variation import TotalVariation
from fedglass.attack.unasked import unasked
from fedglass.core.facts import Fact
from fedglass.core.papers import DLFA
from fedglass.core.registry import register
from fedglass.core.types import Observation
from fedglass.recipes.dlfa_settings import settings
from fedglass.recipes.sme import COUNTS, one_step, surrogate

LARGE = 3 * 64 * 64
"""Entries of an image beyond which it is not played without being asked for."""
FEW = 20
"""Local steps of all clients up to which it is."""


def _dear(seen: Observation) -> str:
    steps, dear = seen.knows.local_steps, "dear to simulate; name it in a plan if you want it"
    if steps is not None and steps * seen.knows.clients > FEW:
        return f"{steps} local steps are {dear}"
    return f"images of that size are {dear}" if math.prod(seen.knows.shape) > LARGE else ""


@unasked(lambda seen: one_step(seen) or _dear(seen))
@register("attacks", "dlfa", summary="simulates the local training, epoch prior; started from sme, fast", paper=DLFA)
def dlfa(
    labels: Labels = COUNTS,
    setting: str = "femnist",
    iterations: int = 60,
    warm_up: int = 200,
    tv: float = 0.02,
    prior: float = 0.003,
    budget_mib: float = BUDGET_MIB,
    shared: bool = False,
    whole_epochs: bool = False,
) -> Attack:
    """SME's images, found in seconds, then the simulation with images of each epoch's own and the epoch prior.

    Differs from the paper in its start, in the cosine distance, total variation and bounds (those of SME), and in
    a rate that decays to zero: a fraction of the iterations of `dlfa_published` reaches its quality. Made for
    networks on which SME gets anywhere; `dlfa_published` starts from noise. `prior` is relative to the weight that
    the setting has in the paper, beside a distance of another scale; 0 leaves it out. `shared` and `whole_epochs`
    give the paper's baselines the same solver: the same images in each epoch, and one batch for each epoch.
    """
    chosen = settings(setting)
    objective: Term = Cosine() + tv * TotalVariation(share=0.5)
    if prior and not shared:
        objective = objective + (prior * chosen.inv) * SquaredEpochPrior(chosen.summary)
    solver = Adam(rate=0.2, iterations=iterations, schedule=CosineDecay())
    forward = UnrollEpochs(budget_mib) if whole_epochs else Unroll(budget_mib)
    simulation = Stage(forward, Pixels() if shared else _separate(labels), objective, solver)
    return Attack(labels, (surrogate(0.01, warm_up), simulation))


def _separate(labels: Labels) -> Images:
    """Images of each epoch's own; in its own order where the labels are."""
    return OrderedEpochPixels() if Fact.BATCH_LABELS in needs_of(labels) else BoundedEpochPixels()
