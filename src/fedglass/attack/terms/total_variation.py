"""Total variation, in the three definitions that the literature uses; all in whitened coordinates.

The definitions differ by factors of hundreds, so that a weight is meaningless without its definition.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedglass.attack.parts import Evaluation
from fedglass.attack.terms.term import Term


@dataclass(frozen=True)
class TotalVariation(Term):
    """(mean|dx| + mean|dy|) * share, anisotropic, borders left out.

    `share=1` is the prior of Inverting Gradients' release [Geiping et al., 2020], `share=0.5` that of SME's
    [Zhu et al., 2023].
    """

    share: float = 1.0

    def value(self, at: Evaluation) -> Tensor:
        x = at.candidate.images
        across = (x[..., :, 1:] - x[..., :, :-1]).abs().mean()
        down = (x[..., 1:, :] - x[..., :-1, :]).abs().mean()
        return across + down if self.share == 1 else self.share * (across + down)


@dataclass(frozen=True)
class CircularTotalVariation(Term):
    """Mean over images of sum over pixels of dx^2 + dy^2, the last pixel beside the first.

    As in the release of Data Leakage in Federated Averaging [Dimitrov et al., 2022]: no root.
    """

    def value(self, at: Evaluation) -> Tensor:
        x = at.candidate.images
        across = (x - x.roll(1, dims=-1)).square().sum()
        down = (x - x.roll(1, dims=-2)).square().sum()
        return (across + down) / (x.shape[0] * x.shape[1])


@dataclass(frozen=True)
class IsotropicTotalVariation(Term):
    """Mean over pixels of (|dx|^2 + |dy|^2 + eps)^(exponent / 2), each pixel's differences together.

    `exponent=1` is the rotation-invariant total variation [Rudin et al., 1992], `exponent=2` a smoothness
    prior. The eps keeps the gradient finite where the picture is flat.
    """

    exponent: float = 1.0
    eps: float = 1e-8

    def value(self, at: Evaluation) -> Tensor:
        x = at.candidate.images
        across = x[..., :-1, 1:] - x[..., :-1, :-1]
        down = x[..., 1:, :-1] - x[..., :-1, :-1]
        energy = across.square() + down.square() + self.eps
        # The eps is taken off again: the variation of a constant is zero.
        floor: float = self.eps ** (self.exponent / 2)
        return torch.pow(energy, self.exponent / 2).mean() - floor
