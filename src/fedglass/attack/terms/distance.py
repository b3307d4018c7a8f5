"""Distances between the message that was seen and the one a candidate would have caused."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedglass.attack.parts import Evaluation
from fedglass.attack.terms.term import Term


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
        target, target_norm = self._target(at)
        product: Tensor | float = 0.0
        square: Tensor | float = 0.0
        for g, y in zip(at.predicted, target, strict=True):
            # A dot product of vectors needs no temporary of their size; `flatten` leaves a vector as it is.
            flat = g.flatten()
            product = product + torch.dot(flat, y)
            square = square + torch.dot(flat, flat)
        return 1 - product / (torch.sqrt(torch.as_tensor(square)) * target_norm)

    def _target(self, at: Evaluation) -> tuple[list[Tensor], Tensor]:
        """The target's tensors as vectors and their common norm, computed once for a stage."""
        found: tuple[list[Tensor], Tensor] | None = at.memo.get(self)
        if found is None:
            flat = [y.reshape(-1) for y in at.target]
            norm = torch.stack([torch.dot(y, y) for y in flat]).sum().sqrt()
            found = at.memo[self] = flat, norm
        return found
