"""The direction of the message where the observed one is not zero."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedglass.attack.parts import Evaluation
from fedglass.attack.terms.term import Term


@dataclass(frozen=True)
class SupportCosine(Term):
    """1 - cos(g_S, y_S) with S = {i: y_i != 0}, the support of the observed message [K. Zhu et al., 2025, Eq. 1].

    Outside of S the product with y vanishes anyway: this differs from `Cosine` in the norm of g alone, which no
    longer counts what the candidate sends where nothing was observed.
    """

    def value(self, at: Evaluation) -> Tensor:
        target, masks, norm = self._target(at)
        product: Tensor | float = 0.0
        square: Tensor | float = 0.0
        for g, y, mask in zip(at.predicted, target, masks, strict=True):
            flat = g.reshape(-1) if mask is None else g.reshape(-1) * mask
            product = product + torch.dot(flat, y)
            square = square + torch.dot(flat, flat)
        return 1 - product / (torch.sqrt(torch.as_tensor(square)) * norm)

    def _target(self, at: Evaluation) -> tuple[list[Tensor], list[Tensor | None], Tensor]:
        """The target's tensors as vectors, their supports (None: everything) and their norm, once for a stage."""
        found: tuple[list[Tensor], list[Tensor | None], Tensor] | None = at.memo.get(self)
        if found is None:
            flat = [y.reshape(-1) for y in at.target]
            masks = [None if bool((y != 0).all()) else y != 0 for y in flat]
            norm = torch.stack([torch.dot(y, y) for y in flat]).sum().sqrt()
            found = at.memo[self] = flat, masks, norm
        return found
