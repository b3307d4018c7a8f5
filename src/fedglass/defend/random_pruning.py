"""Pruning of random entries, over all parameters together, in each of them, or entry by entry."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedglass.core.papers import DLFA
from fedglass.core.params import Update, flatten, unflatten
from fedglass.core.registry import register
from fedglass.defend import checks
from fedglass.defend.draws import uniform
from fedglass.defend.per_example import PerExample
from fedglass.defend.same_each_epoch import SameEachEpoch
from fedglass.defend.selection import count_of
from fedglass.fl.release import Outgoing


@register(
    "defences", "random_pruning", summary="an exact share of the update's entries set to zero at random", paper=DLFA
)
@dataclass(frozen=True)
class RandomPruning:
    """Sets exactly round(share * d) of all entries to zero, drawn at random over all parameters together."""

    share: float

    def __post_init__(self) -> None:
        checks.share(self, "share")

    def release(self, leaving: Outgoing) -> Update:
        return unflatten(_pruned(flatten(leaving.update), self.share, leaving.generator), leaving.update)


@register("defences", "layer_random_pruning", summary="an exact share of each layer set to zero at random", paper=DLFA)
@dataclass(frozen=True)
class LayerRandomPruning:
    """Sets exactly round(share * d) of the d entries of each parameter to zero, drawn at random."""

    share: float

    def __post_init__(self) -> None:
        checks.share(self, "share")

    def release(self, leaving: Outgoing) -> Update:
        noise = leaving.generator
        return {name: _pruned(t.reshape(-1), self.share, noise).view_as(t) for name, t in leaving.update.items()}


@register("defences", "random_drop", summary="each entry of the update set to zero with a probability", paper=DLFA)
@dataclass(frozen=True)
class RandomDrop:
    """Sets each entry to zero with the given probability, independently [Dimitrov et al., 2022, Appendix C.1].

    The kept entries are not scaled up, as in the paper's release. How many are kept is random.
    """

    probability: float

    def __post_init__(self) -> None:
        checks.share(self, "probability")

    def release(self, leaving: Outgoing) -> Update:
        noise, dropped = leaving.generator, self.probability
        return {name: t.masked_fill(uniform(t, noise) < dropped, 0.0) for name, t in leaving.update.items()}


def _pruned(values: Tensor, share: float, generator: torch.Generator) -> Tensor:
    """The vector with a random share set to zero.  # (d,) -> (d,)"""
    order = torch.randperm(values.numel(), generator=generator, device=generator.device)
    chosen = order[: count_of(share, values.numel())].to(values.device)
    return values.index_fill(0, chosen, 0.0)


@register(
    "defences",
    "random_drop_per_example",
    summary="random entries of each example's gradient set to zero in every local step",
    paper=DLFA,
)
def random_drop_per_example(probability: float) -> PerExample:
    """Entries of each example's gradient dropped at random."""
    return PerExample(RandomDrop(probability))


@register(
    "defences",
    "random_drop_released",
    summary="the same with choices that repeat in every epoch, as released",
    paper=DLFA,
)
def random_drop_released(probability: float) -> SameEachEpoch:
    """The same, repeated in every epoch as in the release of DLFA."""
    return SameEachEpoch(PerExample(RandomDrop(probability)))
