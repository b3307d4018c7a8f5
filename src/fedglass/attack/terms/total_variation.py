"""Total variation, in the definitions that the literature uses: in whitened coordinates but for the last.

The definitions differ by factors of hundreds, so that a weight is meaningless without its definition.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedglass.attack.parts import Binding, BoundTerm, Evaluation
from fedglass.attack.terms.term import Term


@dataclass(frozen=True)
class TotalVariation(Term):
    """(mean|dx| + mean|dy|) * share, anisotropic, borders left out.

    `share=1` is the prior of Inverting Gradients' release [Geiping et al., 2020], `share=0.5` that of SME's
    [Zhu et al., 2023].
    """

    share: float = 1.0

    def bind(self, binding: Binding) -> BoundTerm:
        share = self.share

        def value(at: Evaluation) -> Tensor:
            x = at.candidate.images
            across = (x[..., :, 1:] - x[..., :, :-1]).abs().mean()
            down = (x[..., 1:, :] - x[..., :-1, :]).abs().mean()
            return across + down if share == 1 else share * (across + down)

        return value


@dataclass(frozen=True)
class CircularTotalVariation(Term):
    """Mean over images of sum over pixels of dx^2 + dy^2, the last pixel beside the first.

    As in the release of Data Leakage in Federated Averaging [Dimitrov et al., 2022]: no root.
    """

    def bind(self, binding: Binding) -> BoundTerm:
        def value(at: Evaluation) -> Tensor:
            x = at.candidate.images
            across = (x - x.roll(1, dims=-1)).square().sum()
            down = (x - x.roll(1, dims=-2)).square().sum()
            return (across + down) / (x.shape[0] * x.shape[1])

        return value


@dataclass(frozen=True)
class PixelVariation(Term):
    """Mean over images of the sum over pixels and channels of (|dx|^2 + |dy|^2 + eps)^(exponent / 2).

    Of pixels in [0, 1], before whitening: R_TV of K. Zhu et al. [2025] as it is printed, with exponent 4. The paper
    does not say in which coordinates x is. In whitened ones the sum is some 250 times larger at an exponent of 4.
    """

    exponent: float = 4.0
    eps: float = 1e-8

    def bind(self, binding: Binding) -> BoundTerm:
        def value(at: Evaluation) -> Tensor:
            x = at.candidate.images
            pixels = binding.whitening.unwhiten(x)
            return _power(pixels, self.exponent, self.eps).sum() / (x.shape[0] * x.shape[1])

        return value


def _power(x: Tensor, exponent: float, eps: float) -> Tensor:
    """A power of the length of each pixel's gradient, borders left out.  # (..., h, w) -> (..., h - 1, w - 1)"""
    across = x[..., :-1, 1:] - x[..., :-1, :-1]
    down = x[..., 1:, :-1] - x[..., :-1, :-1]
    energy = across.square() + down.square() + eps
    # The eps is taken off again: the variation of a constant is zero.
    floor: float = eps ** (exponent / 2)
    return torch.pow(energy, exponent / 2) - floor
