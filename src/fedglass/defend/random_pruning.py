"""Pruning of random entries, over all parameters together, in each of them, or entry by entry."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedglass.core.params import Update, flatten, unflatten
from fedglass.defend import checks
from fedglass.defend.draws import uniform
from fedglass.defend.selection import count_of


@dataclass(frozen=True)
class RandomPruning:
    """Sets exactly round(share * d) of all entries to zero, drawn at random over all parameters together."""

    share: float

    def __post_init__(self) -> None:
        checks.share(self, "share")

    def release(self, update: Update, generator: torch.Generator) -> Update:
        return unflatten(_pruned(flatten(update), self.share, generator), update)


@dataclass(frozen=True)
class LayerRandomPruning:
    """Sets exactly round(share * d) of the d entries of each parameter to zero, drawn at random."""

    share: float

    def __post_init__(self) -> None:
        checks.share(self, "share")

    def release(self, update: Update, generator: torch.Generator) -> Update:
        return {name: _pruned(t.reshape(-1), self.share, generator).view_as(t) for name, t in update.items()}


@dataclass(frozen=True)
class RandomDrop:
    """Sets each entry to zero with the given probability, independently [Dimitrov et al., 2022, Appendix C.1].

    The kept entries are not scaled up, as in the paper's release. How many are kept is random.
    """

    probability: float

    def __post_init__(self) -> None:
        checks.share(self, "probability")

    def release(self, update: Update, generator: torch.Generator) -> Update:
        return {name: t.masked_fill(uniform(t, generator) < self.probability, 0.0) for name, t in update.items()}


def _pruned(values: Tensor, share: float, generator: torch.Generator) -> Tensor:
    """The vector with a random share set to zero.  # (d,) -> (d,)"""
    order = torch.randperm(values.numel(), generator=generator, device=generator.device)
    chosen = order[: count_of(share, values.numel())].to(values.device)
    return values.index_fill(0, chosen, 0.0)
