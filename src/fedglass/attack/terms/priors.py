"""Priors of the objective: total variation, contrast, pixel bounds, epoch order, and the size of each entry.

Total variation comes in the definitions that the literature uses, in whitened coordinates except for `PixelVariation`.
The definitions differ by factors of hundreds, so a weight is meaningless without its definition.

Epoch-order-invariant priors use that the set of images is the same in each epoch, in any order:
L_inv = 1/E^2 sum_{e1, e2} D(g(X_e1), g(X_e2)) [Dimitrov et al., 2022, Eq. 3], with g an order-invariant summary of an
epoch's images. Both distances are means over the entries of g, as in the paper's release. Neither needs E^2 work: over
all pairs the squared difference is twice the variance, and the absolute difference is a weighted sum of the sorted
values.

Terms of model inversion: the class of each image, how real a critic finds it, and how alike the images are.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from fedglass.attack.parts import Binding, BoundTerm, Evaluation
from fedglass.attack.terms.term import Term
from fedglass.core.errors import UsageError
from fedglass.core.facts import Fact
from fedglass.core.rng import stream
from fedglass.diffusion.gan import StoredGan


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
    """Mean over images of sum over pixels of dx^2 + dy^2; the first pixel follows the last.

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
    """Return a power of the length of each pixel's gradient, without borders.  # (..., h, w) -> (..., h - 1, w - 1)"""
    across = x[..., :-1, 1:] - x[..., :-1, :-1]
    down = x[..., 1:, :-1] - x[..., :-1, :-1]
    energy = across.square() + down.square() + eps
    # The eps is subtracted again, so that the variation of a constant is zero.
    floor: float = eps ** (exponent / 2)
    return torch.pow(energy, exponent / 2) - floor


@dataclass(frozen=True)
class RelativeVariation(Term):
    """`TotalVariation` of x over the root mean square of x, in whitened coordinates.

    It is for operators that do not see the contrast: batch statistics behind a convolution without bias make the
    gradient the same for x and for a x. A plain total variation then lets all contrast fade, since that costs nothing;
    this one does not depend on a either.
    """

    def bind(self, binding: Binding) -> BoundTerm:
        variation = TotalVariation().bind(binding)
        return lambda at: variation(at) / contrast(at)


@dataclass(frozen=True)
class UsualContrast(Term):
    """(root mean square of x - 1)^2: that of whitened data is 1, and the message may not determine it."""

    def bind(self, binding: Binding) -> BoundTerm:
        return lambda at: (contrast(at) - 1).square()


def contrast(at: Evaluation) -> Tensor:
    """Return the root mean square over all pixels of all whitened images, above zero so that it has a gradient."""
    return (at.candidate.images.square().mean() + 1e-8).sqrt()


@dataclass(frozen=True)
class ClipPenalty(Term):
    """Soft pixel bounds: squared excursion outside [low, high], summed over pixels, mean over images.

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


BoundSummary = Callable[[Tensor], Tensor]
"""(epochs, n, c, h, w) -> (epochs, ...)"""


@dataclass(frozen=True)
class Mean:
    """The mean image."""

    def bind(self, binding: Binding) -> BoundSummary:
        return lambda images: images.mean(1)


@dataclass(frozen=True)
class Max:
    """The pixelwise maximum."""

    def bind(self, binding: Binding) -> BoundSummary:
        return lambda images: images.amax(1)


@dataclass(frozen=True)
class ConvMean:
    """The mean of a random 3x3 convolution of the images."""

    channels: int = 96
    seed: int = 0

    def bind(self, binding: Binding) -> BoundSummary:
        kernel = random_kernel(self.channels, self.seed, binding)
        # The convolution is linear: that of the mean is the mean of those, for 1/n of the work.
        return lambda images: F.conv2d(images.mean(1), kernel, padding=1)


@dataclass(frozen=True)
class ConvMax:
    """The pixelwise maximum of a random 3x3 convolution of the images."""

    channels: int = 96
    seed: int = 0

    def bind(self, binding: Binding) -> BoundSummary:
        kernel = random_kernel(self.channels, self.seed, binding)

        def summarise(images: Tensor) -> Tensor:
            # `max` stores the place of the maximum, `amax` the whole convolution, which for many epochs is gigabytes.
            return torch.stack([F.conv2d(epoch, kernel, padding=1).max(0).values for epoch in images])

        return summarise


EpochSummary = Mean | Max | ConvMean | ConvMax
"""g: a summary of each epoch's images that does not depend on their order."""


@dataclass(frozen=True)
class SquaredEpochPrior(Term):
    """D the mean squared difference: 1/E^2 sum of (a - b)^2 over all pairs is twice the variance."""

    summary: EpochSummary = field(default_factory=Mean)

    def bind(self, binding: Binding) -> BoundTerm:
        summarise = self.summary.bind(binding)
        return lambda at: 2 * summarise(at.candidate.images).var(0, unbiased=False).mean()


@dataclass(frozen=True)
class AbsoluteEpochPrior(Term):
    """D the mean absolute difference: sum of |a - b| over all pairs is 2 sum_i (2i + 1 - E) a_(i), sorted."""

    summary: EpochSummary = field(default_factory=Mean)

    def bind(self, binding: Binding) -> BoundTerm:
        summarise = self.summary.bind(binding)

        def value(at: Evaluation) -> Tensor:
            values = summarise(at.candidate.images)  # (epochs, ...)
            epochs = len(values)
            rank = torch.arange(epochs, device=values.device, dtype=values.dtype)
            weight = 2 * (2 * rank + 1 - epochs) / epochs**2
            return (weight @ values.sort(0).values.flatten(1)).mean()

        return value


def random_kernel(channels: int, seed: int, binding: Binding) -> Tensor:
    """Draw a convolution from N(0, 1 / fan in).  # (channels, c, 3, 3)"""
    c = binding.shape[0]
    drawn = torch.randn(channels, c, 3, 3, generator=stream(seed, "epoch prior"))
    kernel: Tensor = drawn / (9 * c) ** 0.5
    return kernel.to(binding.target[0])


@dataclass(frozen=True)
class ReweightedL1(Term):
    """Sum over entries of |g_j - y_j| / (1 + |y_j|), over the number of gradients [K. Zhu et al., 2025, Eq. 2].

    The paper's weight is "the reciprocal of the amount of gradients". Read as the number of tensors (a gradient is a
    list of tensors in the framework that the paper builds on), the term outweighs the cosine. Read as the number of
    entries it is a hundredth of it, and the second stage does little more than the first (measured on a ResNet-18). The
    error is relative where |y_j| is large and absolute where it is small. It depends on the scale: it needs the
    learning rate and the number of local steps, which give the message its size.
    """

    needs: ClassVar[frozenset[Fact]] = frozenset({Fact.SIZE})

    def bind(self, binding: Binding) -> BoundTerm:
        return _weighted_l1(binding.target, relative)


@dataclass(frozen=True)
class SupportReweightedL1(Term):
    """`ReweightedL1` where the observed message is not zero.

    It is for messages that were pruned: a pruned zero carries no information about the gradient.
    """

    needs: ClassVar[frozenset[Fact]] = frozenset({Fact.SIZE})

    def bind(self, binding: Binding) -> BoundTerm:
        return _weighted_l1(binding.target, lambda y: relative(y) * (y != 0))


def relative(y: Tensor) -> Tensor:
    """Return 1 / (1 + |y_j|), the weight of each entry of a gradient's tensor.  # (m,) -> (m,)

    >>> relative(torch.tensor([0.0, -1.0, 3.0]))
    tensor([1.0000, 0.5000, 0.2500])
    """
    return 1 / (1 + y.abs())


def _weighted_l1(target: Sequence[Tensor], weight: Callable[[Tensor], Tensor]) -> BoundTerm:
    """Return the sum over entries of weight(y)_j |g_j - y_j|, over the number of tensors."""
    weights = [weight(y.reshape(-1)) / len(target) for y in target]

    def value(at: Evaluation) -> Tensor:
        rows = zip(at.predicted, target, weights, strict=True)
        return torch.as_tensor(sum(torch.dot((g - y).abs().reshape(-1), w) for g, y, w in rows))

    return value


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
