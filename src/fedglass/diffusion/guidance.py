"""Classifier-free guidance: answers for a class, exaggerated by their difference from those for none."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedglass.core.errors import UsageError
from fedglass.diffusion.denoiser import Network


@dataclass(frozen=True, eq=False)
class Guided:
    """none + scale (class - none) [Ho and Salimans, 2022, Eq. 6, with scale = 1 + w]; 1 is no guidance.

    Clean image, noise and v are affine in each other at a given noisy image, so it is the same whichever the network
    answers with.
    """

    network: Network
    none: int
    """The label that stands for no class."""
    scale: float

    def __post_init__(self) -> None:
        if self.scale < 0:
            raise UsageError(f"Guidance must not be negative, got {self.scale}.")

    def __call__(self, noisy: Tensor, steps: Tensor, labels: Tensor | None) -> Tensor:
        if labels is None or self.scale == 1:
            return self.network(noisy, steps, labels)
        both = torch.cat([labels, torch.full_like(labels, self.none)])
        answers = self.network(torch.cat([noisy, noisy]), torch.cat([steps, steps]), both)
        of_class, of_none = answers.chunk(2)
        return of_none + self.scale * (of_class - of_none)
