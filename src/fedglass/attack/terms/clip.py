"""A soft version of the pixel bounds."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from fedglass.attack.parts import Binding, BoundTerm, Evaluation
from fedglass.attack.terms.term import Term


@dataclass(frozen=True)
class ClipPenalty(Term):
    """Squared excursion of the pixels outside [low, high], summed over pixels, mean over images.

    As in the release of Data Leakage in Federated Averaging [Dimitrov et al., 2022].
    """

    low: float = 0.0
    high: float = 1.0

    def bind(self, binding: Binding) -> BoundTerm:
        def value(at: Evaluation) -> Tensor:
            x = at.candidate.images
            pixels = binding.whitening.unwhiten(x)
            return (pixels - pixels.clamp(self.low, self.high)).square().sum() / (x.shape[0] * x.shape[1])

        return value
