"""The size of the message, entry by entry."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedglass.attack.parts import Evaluation
from fedglass.attack.terms.term import Term


@dataclass(frozen=True)
class ReweightedL1(Term):
    """Sum over entries of |g_j - y_j| / (1 + |y_j|), over the number of gradients [K. Zhu et al., 2025, Eq. 2].

    The paper's weight is "the reciprocal of the amount of gradients". Read as the number of tensors, of which a
    gradient is a list in the framework that the paper builds on, the term outweighs the cosine. Read as the number
    of entries it is a hundredth of it, and the second stage does little more than the first (measured on a
    ResNet-18). Relative error where |y_j| is large, absolute error where it is small. Not blind to scale: it needs
    the learning rate and the number of local steps, without which the message has no size.
    """

    def value(self, at: Evaluation) -> Tensor:
        weights: list[Tensor] | None = at.memo.get(self)
        if weights is None:
            weights = at.memo[self] = [self.weight(y.reshape(-1)) / len(at.target) for y in at.target]
        total: Tensor | float = 0.0
        for g, y, weight in zip(at.predicted, at.target, weights, strict=True):
            total = total + torch.dot((g - y).abs().reshape(-1), weight)
        return torch.as_tensor(total)

    def weight(self, y: Tensor) -> Tensor:
        """Of each entry of a gradient's tensor.  # (m,) -> (m,)"""
        return 1 / (1 + y.abs())


@dataclass(frozen=True)
class SupportReweightedL1(ReweightedL1):
    """`ReweightedL1` where the observed message is not zero.

    For messages that were pruned: a zero that was sent there says nothing of the gradient.
    """

    def weight(self, y: Tensor) -> Tensor:
        return super().weight(y) * (y != 0)
