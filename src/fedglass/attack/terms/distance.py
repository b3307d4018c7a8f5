"""Distances between the message that was seen and the one a candidate would have caused."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedglass.attack.parts import Evaluation
from fedglass.attack.terms.term import Term


def dot(left: Tensor, right: Tensor) -> Tensor:
    """Inner product of two tensors without a temporary of their size."""
    return torch.dot(left.reshape(-1), right.reshape(-1))


@dataclass(frozen=True)
class SquaredError(Term):
    """sum_l |g_l - y_l|^2 [Zhu et al., 2019, Eq. 4]."""

    def value(self, at: Evaluation) -> Tensor:
        pairs = zip(at.predicted, at.target, strict=True)
        return torch.stack([(g - y).square().sum() for g, y in pairs]).sum()


@dataclass(frozen=True)
class Cosine(Term):
    """1 - <g, y> / (|g| |y|) over the whole flattened message [Geiping et al., 2020, Eq. 4].

    Blind to the scale of the message, so that the learning rate and the number of steps need not be known.
    """

    def value(self, at: Evaluation) -> Tensor:
        product = torch.stack([dot(g, y) for g, y in zip(at.predicted, at.target, strict=True)]).sum()
        norm = torch.stack([dot(g, g) for g in at.predicted]).sum().sqrt()
        return 1 - product / (norm * self._target_norm(at))

    def _target_norm(self, at: Evaluation) -> Tensor:
        norm: Tensor | None = at.memo.get(self)
        if norm is None:
            norm = at.memo[self] = torch.stack([dot(y, y) for y in at.target]).sum().sqrt()
        return norm
