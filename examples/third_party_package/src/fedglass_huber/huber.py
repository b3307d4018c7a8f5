"""A distance that forgives outliers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import huber_loss

from fedglass.attack.parts import Binding, BoundTerm, Evaluation
from fedglass.attack.terms.term import Term
from fedglass.core.facts import Fact


@dataclass(frozen=True)
class Huber(Term):
    """sum_l of the Huber loss between g_l and y_l, quadratic up to `delta` and linear beyond [Huber, 1964]."""

    delta: float = 0.01
    needs: ClassVar[frozenset[Fact]] = frozenset({Fact.SIZE})

    def bind(self, binding: Binding) -> BoundTerm:
        def value(at: Evaluation) -> Tensor:
            pairs = zip(at.predicted, binding.target, strict=True)
            return torch.stack([huber_loss(g, y, reduction="sum", delta=self.delta) for g, y in pairs]).sum()

        return value
