"""The direction of the message with layers of different weight."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedglass.attack.parts import Binding, BoundTerm, Evaluation
from fedglass.attack.terms.cosine import norm, products
from fedglass.attack.terms.layers import layer_depths
from fedglass.attack.terms.term import Term


@dataclass(frozen=True)
class LayeredCosine(Term):
    """1 - <g, y>_w / (|g|_w |y|_w) with <a, b>_w = sum_l w_l <a_l, b_l>, the weights linear in depth.

    w goes from `first` at the input to `last` at the output. AGIC lets the weights increase with depth, says its
    abstract [Xu et al., 2022]; that they do so linearly, and the two ends, are ours and could not be confirmed.
    Equal ends give `Cosine`.
    """

    first: float = 0.5
    last: float = 1.0

    def bind(self, binding: Binding) -> BoundTerm:
        depths = layer_depths(binding.names)
        step = (self.last - self.first) / max(1, max(depths))
        weights = [self.first + step * d for d in depths]
        target = [y.reshape(-1) for y in binding.target]
        length = norm(target, weights)

        def value(at: Evaluation) -> Tensor:
            product, square = products((g.reshape(-1) for g in at.predicted), target, weights)
            return 1 - product / (torch.sqrt(square) * length)

        return value
