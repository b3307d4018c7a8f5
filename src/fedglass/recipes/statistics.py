"""Reading what BatchNorm's running statistics tell beside the update that they come with."""

from __future__ import annotations

from dataclasses import replace

from fedglass.attack.attack import Attack, Stage
from fedglass.attack.forward.statistics import BesideStatistics
from fedglass.attack.parts import Labels
from fedglass.attack.terms.statistics import WithStatistics
from fedglass.attack.unasked import unasked
from fedglass.core.facts import Fact
from fedglass.core.registry import register
from fedglass.core.types import Observation
from fedglass.recipes.coarse_to_fine import MINIMUM_RULE, PAPER, coarse_to_fine_batchnorm


def _untold(seen: Observation) -> str:
    return "" if Fact.STATISTICS in seen.facts else "no running statistics that have moved were recorded"


@unasked(_untold)
@register(
    "attacks",
    "coarse_to_fine_statistics",
    summary="coarse_to_fine_batchnorm that also matches the running statistics which come with the update",
    paper=PAPER,
)
def coarse_to_fine_statistics(
    labels: Labels = MINIMUM_RULE, weight: float = 1.0, iterations: int = 500, restarts: int = 1
) -> Attack:
    """For clients that train BatchNorm by the batch: their layers' statistics tell mean and contrast of the pictures.

    Defences of the update do not touch them. Not in the paper.
    """
    attack = coarse_to_fine_batchnorm(labels, iterations, restarts)

    def beside(stage: Stage) -> Stage:
        return replace(
            stage, forward=BesideStatistics(stage.forward), objective=WithStatistics(stage.objective, weight)
        )

    return replace(attack, stages=tuple(map(beside, attack.stages)))
