"""Defences that set entries of an update to zero: the smallest ones, or random ones.

Pruning removes an exact number of entries, over all parameters together or in each parameter. `RandomDrop` decides
about each entry separately, so the number of removed entries is random.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedglass.core.registry import register
from fedglass.core.tensors import Update, flatten, kth_smallest, unflatten
from fedglass.core.text import DLFA, DLG
from fedglass.defend import checks
from fedglass.defend.noise import uniform
from fedglass.defend.per_example import register_gradient_forms
from fedglass.fl.release import Outgoing


def lowest(values: Tensor, count: int) -> Tensor:
    """Mark exactly `count` of the lowest entries; among equal ones those that come first.  # (d,) -> (d,) bool

    A threshold alone would take all or none of the entries that are equal to it.

    >>> lowest(torch.tensor([3.0, 1.0, 1.0, 2.0]), 1)
    tensor([False,  True, False, False])
    """
    if count == 0:
        return torch.zeros_like(values, dtype=torch.bool)
    threshold = kth_smallest(values, count)
    below = values < threshold
    equal = values == threshold
    return below | (equal & (equal.cumsum(0) <= count - below.sum()))


def count_of(share: float, entries: int) -> int:
    """Return the share of that many entries, to the nearest whole number.

    >>> count_of(0.7, 10), count_of(0.0, 10)
    (7, 0)
    """
    return round(share * entries)


@register("defences", "magnitude_pruning", summary="the update's smallest entries set to zero", paper=DLG)
@dataclass(frozen=True)
class MagnitudePruning:
    """Set the given share of all entries to zero: those of smallest magnitude [Zhu et al., 2019, Section 5.2].

    The threshold is over all parameters together, as in the evaluation of coarse-to-fine inversion. Exactly
    round(share * d) entries are pruned, also where several have the magnitude of the threshold.

    >>> import torch
    >>> update = {"a": torch.tensor([1.0, -4.0]), "b": torch.tensor([3.0, 2.0])}
    >>> MagnitudePruning(share=0.5).release(Outgoing(update, torch.Generator()))
    {'a': tensor([ 0., -4.]), 'b': tensor([3., 0.])}
    """

    share: float

    def __post_init__(self) -> None:
        checks.share(self, "share")

    def release(self, leaving: Outgoing) -> Update:
        return unflatten(pruned(flatten(leaving.update), self.share), leaving.update)


@register("defences", "layer_magnitude_pruning", summary="each layer's smallest entries set to zero", paper=DLG)
@dataclass(frozen=True)
class LayerMagnitudePruning:
    """Sets the given share of each parameter's entries to zero: those of smallest magnitude.

    This is what the releases of Soteria and of OUTPOST do as gradient compression, there with a percentile as
    threshold.

    >>> import torch
    >>> update = {"a": torch.tensor([1.0, -4.0]), "b": torch.tensor([9.0, 8.0])}
    >>> LayerMagnitudePruning(share=0.5).release(Outgoing(update, torch.Generator()))
    {'a': tensor([ 0., -4.]), 'b': tensor([9., 0.])}
    """

    share: float

    def __post_init__(self) -> None:
        checks.share(self, "share")

    def release(self, leaving: Outgoing) -> Update:
        return {name: pruned(t.reshape(-1), self.share).view_as(t) for name, t in leaving.update.items()}


def pruned(values: Tensor, share: float) -> Tensor:
    """Return the vector with the share of smallest magnitude set to zero.  # (d,) -> (d,)"""
    return values.masked_fill(lowest(values.abs(), count_of(share, values.numel())), 0.0)


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
        return unflatten(_randomly_pruned(flatten(leaving.update), self.share, leaving.generator), leaving.update)


@register("defences", "layer_random_pruning", summary="an exact share of each layer set to zero at random", paper=DLFA)
@dataclass(frozen=True)
class LayerRandomPruning:
    """Sets exactly round(share * d) of the d entries of each parameter to zero, drawn at random."""

    share: float

    def __post_init__(self) -> None:
        checks.share(self, "share")

    def release(self, leaving: Outgoing) -> Update:
        return {
            name: _randomly_pruned(tensor.reshape(-1), self.share, leaving.generator).view_as(tensor)
            for name, tensor in leaving.update.items()
        }


@register_gradient_forms("random_drop", "random entries of each example's gradient set to zero in every local step")
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


def _randomly_pruned(values: Tensor, share: float, generator: torch.Generator) -> Tensor:
    """Return the vector with a random share set to zero.  # (d,) -> (d,)"""
    order = torch.randperm(values.numel(), generator=generator, device=generator.device)
    chosen = order[: count_of(share, values.numel())].to(values.device)
    return values.index_fill(0, chosen, 0.0)
