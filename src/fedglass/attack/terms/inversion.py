"""Terms of model inversion: the class of each image, how real a critic finds it, and how alike the images are."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
from torch import Tensor

from fedglass.attack.parts import Binding, BoundTerm, Evaluation
from fedglass.attack.terms.term import Term
from fedglass.core.errors import UsageError
from fedglass.diffusion.gan import StoredGan

RIDGE = 1e-5
"""Share of the number of images that is added to the diagonal of a kernel matrix before it is inverted."""


@dataclass(frozen=True)
class ClassLoss(Term):
    """The mean of the losses that `GlobalModel` predicts: L_id of [Zhang et al., 2020]."""

    def bind(self, binding: Binding) -> BoundTerm:
        return lambda at: at.predicted[0].mean()


@dataclass(frozen=True)
class CriticScore(Term):
    """Minus the mean score of a GAN's critic: the prior loss of [Zhang et al., 2020]."""

    gan: StoredGan

    def bind(self, binding: Binding) -> BoundTerm:
        critic = copy.deepcopy(self.gan.code_gan(binding.shape).critic).to(binding.target[0])

        def value(at: Evaluation) -> Tensor:
            pixels = binding.whitening.unwhiten(at.candidate.images[0])
            scores: Tensor = critic(2 * pixels - 1)
            return -scores.mean()

        return value


@dataclass(frozen=True)
class BatchDependence(Term):
    """The normalised HSIC between the first half of the images and the second [Wu et al., 2024].

    tr(R_x R_y), R = K H (K H + m RIDGE)^-1, with the kernel K = exp(-|a - b|^2 / (2 width^2 d)) of m images of d pixels
    in [0, 1]. Minimised, it makes the images differ. As in the release; a single image, or three, have no halves to
    compare, and the term is zero.
    """

    width: float = 5.0

    def __post_init__(self) -> None:
        if not self.width > 0:
            raise UsageError(f"The width of BatchDependence must be more than 0, got {self.width}.")

    def bind(self, binding: Binding) -> BoundTerm:
        def value(at: Evaluation) -> Tensor:
            pixels = binding.whitening.unwhiten(at.candidate.images[0]).flatten(1)
            half = len(pixels) // 2
            first, second = self._centred(pixels[:half]), self._centred(pixels[half : 2 * half])
            return (first * second.mT).sum()

        return value

    def _centred(self, images: Tensor) -> Tensor:
        """Return R.  # (m, d) -> (m, m)"""
        m, d = images.shape
        squares = (images[:, None] - images[None]).square().sum(2)
        kernel = torch.exp(-squares / (2 * self.width**2 * d))
        centred = kernel - kernel.mean(1, keepdim=True)
        unit = torch.eye(m, dtype=images.dtype, device=images.device)
        ratio: Tensor = torch.linalg.solve(centred + RIDGE * m * unit, centred, left=False)
        return ratio
