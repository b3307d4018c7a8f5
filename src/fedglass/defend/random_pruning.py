"""Pruning of random entries, over all parameters together, in each of them, or entry by entry."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedglass.core.params import Update, flatten, unflatten
from fedglass.defend import checks
from fedglass.defend.draws import uniform
from fedglass.defend.selection import count_of
from fedglass.fl.release import Outgoing


@dataclass(frozen=True)
class RandomPruning:
    """Sets exactly round(share * d) of all entries to zero, drawn at random over all parameters together."""

    share: float

    def __post_init__(self) -> None:
        checks.share(self, "share")

    def release(self, leaving: Outgoing) -> Update:
        return unflatten(_pruned(flatten(leaving.update), self.share, leaving.generator), leaving.update)


@dataclass(frozen=True)
class LayerRandomPruning:
    """Sets exactly round(share * d) of the d entries of each parameter to zero, drawn at random."""

    share: float

    def __post_init__(self) -> None:
        checks.share(self, "share")

    def release(self, leaving: Outgoing) -> Update:
        noise = leaving.generator
        return {name: _pruned(t.reshape(-1), self.share, noise).view_as(t) for name, t in leaving.update.items()}


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
