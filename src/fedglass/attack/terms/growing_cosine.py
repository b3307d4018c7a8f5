"""The direction of a growing part of the message."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from fedglass.attack.parts import Binding, BoundTerm, Evaluation
from fedglass.attack.terms.cosine import products
from fedglass.attack.terms.term import Term
from fedglass.core.rng import stream


@dataclass(frozen=True)
class GrowingCosine(Term):
    """1 - cos(g_P, y_P) over a part P of the message: its last tensors, and of their entries a random share `kept`.

    The subset selection of HFGradInv [Ye et al., 2024]: from the share `first` of the tensors, counted from the
    output, to the share `last` at `until` of the way. The defaults are those of the paper's release for
    ResNet-34, where 11 of 110 tensors become 86 over 4,000 of 15,000 iterations, in steps of ten; here they come one
    by one. The random entries are drawn anew at each iteration, from the seed and the share of the way.
    """

    first: float = 0.1
    last: float = 0.78
    until: float = 4 / 15
    kept: float = 0.7
    seed: int = 0

    def bind(self, binding: Binding) -> BoundTerm:
        target = [y.reshape(-1) for y in binding.target]

        def value(at: Evaluation) -> Tensor:
            last = target[-self.tensors(len(target), at.progress) :]
            draw = stream(self.seed, "growing cosine", repr(at.progress))
            masks = [
                torch.empty(len(y), dtype=torch.bool).bernoulli_(self.kept, generator=draw).to(y.device) for y in last
            ]
            kept = [y * mask for y, mask in zip(last, masks, strict=True)]
            predicted = zip(at.predicted[-len(last) :], masks, strict=True)
            product, square = products((g.reshape(-1) * mask for g, mask in predicted), kept)
            return 1 - product / torch.sqrt(square) / torch.sqrt(products(kept, kept)[1])

        return value

    def tensors(self, of: int, progress: float) -> int:
        """How many of that many tensors count at a share of the way.

        >>> [GrowingCosine().tensors(110, share) for share in (0.0, 4 / 15, 1.0)]
        [11, 86, 86]
        """
        share = self.first + (self.last - self.first) * min(1.0, progress / self.until)
        return min(of, max(1, math.ceil(share * of - 1e-9)))
