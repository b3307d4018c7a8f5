"""The direction of the message with layers of different weight."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedglass.attack.parts import Evaluation
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

    def value(self, at: Evaluation) -> Tensor:
        target, weights, norm = self._target(at)
        product: Tensor | float = 0.0
        square: Tensor | float = 0.0
        for g, y, w in zip(at.predicted, target, weights, strict=True):
            flat = g.reshape(-1)
            product = product + w * torch.dot(flat, y)
            square = square + w * torch.dot(flat, flat)
        return 1 - product / (torch.sqrt(torch.as_tensor(square)) * norm)

    def _target(self, at: Evaluation) -> tuple[list[Tensor], list[float], Tensor]:
        """The target's tensors as vectors, their weights and their weighted norm, once for a stage."""
        found: tuple[list[Tensor], list[float], Tensor] | None = at.memo.get(self)
        if found is None:
            depths = layer_depths(at.names)
            step = (self.last - self.first) / max(1, max(depths))
            weights = [self.first + step * d for d in depths]
            flat = [y.reshape(-1) for y in at.target]
            norm = torch.stack([w * torch.dot(y, y) for w, y in zip(weights, flat, strict=True)]).sum().sqrt()
            found = at.memo[self] = flat, weights, norm
        return found
