"""Distances between the message that was seen and the one a candidate would have caused."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedglass.attack.parts import Binding, BoundTerm, Evaluation
from fedglass.attack.terms.cosine import norm, products
from fedglass.attack.terms.term import Term
from fedglass.core.facts import Fact


@dataclass(frozen=True)
class SquaredError(Term):
    """sum_l |g_l - y_l|^2 [Zhu et al., 2019, Eq. 4]."""

    needs: ClassVar[frozenset[Fact]] = frozenset({Fact.SIZE})

    def bind(self, binding: Binding) -> BoundTerm:
        target = binding.target

        def value(at: Evaluation) -> Tensor:
            pairs = zip(at.predicted, target, strict=True)
            return torch.stack([(g - y).square().sum() for g, y in pairs]).sum()

        return value


@dataclass(frozen=True)
class Cosine(Term):
    """1 - <g, y> / (|g| |y|) over the whole flattened message [Geiping et al., 2020, Eq. 4].

    Blind to the scale of the message, so that the learning rate and the number of steps need not be known.
    """

    def bind(self, binding: Binding) -> BoundTerm:
        target = [y.reshape(-1) for y in binding.target]
        length = norm(target)

        def value(at: Evaluation) -> Tensor:
            product, square = products((g.flatten() for g in at.predicted), target)
            return 1 - product / (torch.sqrt(square) * length)

        return value
