"""Distances that weigh the layers of the message differently."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedglass.attack.parts import Binding, BoundTerm, Evaluation
from fedglass.attack.terms.term import Term
from fedglass.core.facts import Fact


@dataclass(frozen=True)
class LayeredSquaredError(Term):
    """sum_l e^(-decay l) |g_l - y_l|^2 / B, layers counted from the input, a bias with its weight.

    The distance of DLFA's release [Dimitrov et al., 2022], whose paper prints a cosine. B is the number of local
    batches that the candidate's images fill: all local steps where each epoch has its own images, those of one
    epoch where the epochs share them.
    """

    needs: ClassVar[frozenset[Fact]] = frozenset({Fact.SIZE})

    decay: float = 1.0

    def bind(self, binding: Binding) -> BoundTerm:
        target, batches = binding.target, binding.batches
        weights = [math.exp(-self.decay * depth) for depth in layer_depths(binding.names)]

        def value(at: Evaluation) -> Tensor:
            rows = zip(weights, at.predicted, target, strict=True)
            errors = [w * (g - y).square().sum() for w, g, y in rows]
            return torch.stack(errors).sum() / (batches * at.candidate.images.shape[0])

        return value


@dataclass(frozen=True)
class Ramp(Term):
    """A term whose weight moves geometrically from `first` to `last` until the share `until` of the way."""

    term: Term
    first: float
    last: float
    until: float = 0.5

    def bind(self, binding: Binding) -> BoundTerm:
        term = self.term.bind(binding)

        def value(at: Evaluation) -> Tensor:
            share = min(1.0, at.progress / self.until)
            weight: float = self.first * (self.last / self.first) ** share
            return weight * term(at)

        return value


def layer_depths(names: tuple[str, ...]) -> list[int]:
    """The position of each parameter's layer.

    >>> layer_depths(("conv1.weight", "conv1.bias", "fc.weight", "fc.bias"))
    [0, 0, 1, 1]
    """
    owners = [name.rpartition(".")[0] for name in names]
    order = {owner: position for position, owner in enumerate(dict.fromkeys(owners))}
    return [order[owner] for owner in owners]
