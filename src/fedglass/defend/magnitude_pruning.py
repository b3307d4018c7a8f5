"""Pruning of the smallest entries, over all parameters together or in each of them."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from fedglass.core.papers import DLG
from fedglass.core.params import Update, flatten, unflatten
from fedglass.core.registry import register
from fedglass.defend import checks
from fedglass.defend.selection import count_of, lowest
from fedglass.fl.release import Outgoing


@register("defences", "magnitude_pruning", summary="the update's smallest entries set to zero", paper=DLG)
@dataclass(frozen=True)
class MagnitudePruning:
    """Sets the given share of all entries to zero: those of smallest magnitude [Zhu et al., 2019, Section 5.2].

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
    """The vector with the share of smallest magnitude set to zero.  # (d,) -> (d,)"""
    return values.masked_fill(lowest(values.abs(), count_of(share, values.numel())), 0.0)
