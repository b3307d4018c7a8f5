"""The direction of the message where the observed one is not zero."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedglass.attack.parts import Binding, BoundTerm, Evaluation
from fedglass.attack.terms.cosine import norm, products
from fedglass.attack.terms.term import Term


@dataclass(frozen=True)
class SupportCosine(Term):
    """1 - cos(g_S, y_S) with S = {i: y_i != 0}, the support of the observed message [K. Zhu et al., 2025, Eq. 1].

    Outside of S the product with y vanishes anyway: this differs from `Cosine` in the norm of g alone, which no
    longer counts what the candidate sends where nothing was observed.
    """

    def bind(self, binding: Binding) -> BoundTerm:
        target = [y.reshape(-1) for y in binding.target]
        # None for a tensor that was sent as a whole: it need not be masked.
        masks = [None if bool((y != 0).all()) else y != 0 for y in target]
        length = norm(target)

        def value(at: Evaluation) -> Tensor:
            pairs = zip(at.predicted, masks, strict=True)
            sent = (g.reshape(-1) if mask is None else g.reshape(-1) * mask for g, mask in pairs)
            product, square = products(sent, target)
            return 1 - product / (torch.sqrt(square) * length)

        return value
