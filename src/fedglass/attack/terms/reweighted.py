"""The size of the message, entry by entry."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedglass.attack.parts import Evaluation
from fedglass.attack.terms.term import Term


@dataclass(frozen=True)
class ReweightedL1(Term):
    """Mean over entries of |g_j - y_j| / (1 + |y_j|) [K. Zhu et al., 2025, Eq. 2].

    The paper writes a sum and sets its weight to the reciprocal of the number of entries. Relative error where
    |y_j| is large, absolute error where it is small. Not blind to scale: it needs the learning rate and the number
    of local steps, without which the message has no size.
    """

    def value(self, at: Evaluation) -> Tensor:
        weights: list[Tensor] | None = at.memo.get(self)
        if weights is None:
            entries = sum(y.numel() for y in at.target)
            weights = at.memo[self] = [1 / ((1 + y.reshape(-1).abs()) * entries) for y in at.target]
        total: Tensor | float = 0.0
        for g, y, weight in zip(at.predicted, at.target, weights, strict=True):
            total = total + torch.dot((g - y).abs().reshape(-1), weight)
        return torch.as_tensor(total)
