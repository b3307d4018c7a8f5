"""Direction and size of each layer, over its larger entries."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedglass.attack.parts import Binding, BoundTerm, Evaluation
from fedglass.attack.terms.term import Term
from fedglass.core.facts import Fact
from fedglass.core.selection import kth_smallest


@dataclass(frozen=True)
class PartialMatch(Term):
    """sum_l (mean|g - y| + 1 - cos(g, y)) over the entries of layer l in which |g| is not among its smaller share.

    The partial gradient matching of FedLeak [Fan et al., 2025], as its release does it: the candidate's gradient
    g decides which entries count (those above its quantile `dropped`, in each tensor), the others are set to zero in
    both. The release cuts off another fifth of the smallest observed entries inside the cosine, which after the
    first cut are all zero: that changes nothing and is left out. The 1 in front of the cosine is ours.
    """

    needs: ClassVar[frozenset[Fact]] = frozenset({Fact.SIZE})

    dropped: float = 0.5

    def bind(self, binding: Binding) -> BoundTerm:
        target = [y.reshape(-1) for y in binding.target]

        def value(at: Evaluation) -> Tensor:
            pairs = zip(at.predicted, target, strict=True)
            return torch.stack([self._one(g.reshape(-1), y) for g, y in pairs]).sum()

        return value

    def _one(self, g: Tensor, y: Tensor) -> Tensor:
        size = g.detach().abs()
        mask = size >= kth_smallest(size, 1 + int(self.dropped * (len(size) - 1)))
        g, y = g * mask, y * mask
        # Of a layer that sends nothing the norm is zero, with a zero gradient; the 1e-8 is the release's.
        lengths = (torch.linalg.vector_norm(g) + 1e-8) * (torch.linalg.vector_norm(y) + 1e-8)
        distance: Tensor = (g - y).abs().mean() + 1 - torch.dot(g, y) / lengths
        return distance
