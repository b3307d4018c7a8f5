"""Images as the output of an untrained convolutional generator; the unknowns are its weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from fedglass.attack.images.pixels import like, whitened_bounds
from fedglass.attack.parts import Bound
from fedglass.core.errors import UsageError
from fedglass.core.types import Observation, Unknown

SLOPE = 0.1
"""Slope of the leaky ReLU for negative inputs."""
FULL_WIDTH_SIDE = 32
"""Up to this side all blocks are equally wide; each further doubling halves the width, down to a quarter."""


@dataclass(frozen=True)
class GeneratorWeights:
    """x = G(z; theta), theta the unknowns and z ~ N(0, 1) fixed [Fan et al., 2025, FedLeak].

    After the release: a code for each image becomes 4 x 4, and blocks of two 3 x 3 convolutions with batch
    normalisation and leaky ReLU follow, doubling the side in between; a 1 x 1 convolution and a sigmoid give pixels
    inside the bounds. Other sides are reached by resizing, as the coarse-to-fine paper does. The
    release's spectral normalisation is left out: batch normalisation undoes a convolution's scale.
    """

    evaluations: ClassVar[float] = 2.0
    """Cost of an iteration, in iterations on pixels."""

    width: int = 256
    code: int = 128

    def __post_init__(self) -> None:
        for name in ("width", "code"):
            if getattr(self, name) < 1:
                raise UsageError(f"generator.{name} must be at least 1, got {getattr(self, name)}.")

    def bind(self, observation: Observation, generator: torch.Generator, start: Tensor | None) -> Bound:
        if start is not None:
            raise UsageError(
                "GeneratorWeights cannot start from the images of a previous stage: make its stage the first."
            )
        knows, kind = observation.knows, like(observation)
        code = torch.randn(knows.examples, self.code, 1, 1, generator=generator).to(kind)
        starts = [t.to(kind) for t in self.weights(knows.shape, generator)]

        def decode(tensors: Sequence[Tensor]) -> Tensor:
            shares = F.interpolate(generate(code, tensors), knows.shape[1:], mode="bilinear", antialias=True)
            pixels = knows.low + (knows.high - knows.low) * shares
            return knows.whitening.whiten(pixels)[None]  # (1, n, c, h, w)

        low, high = whitened_bounds(observation)
        # There are enough weights for every pixel: only the sigmoid at the end limits the pictures.
        return Bound(tuple(Unknown(t) for t in starts), decode, lambda images: images.clamp(low, high))

    def weights(self, shape: tuple[int, int, int], generator: torch.Generator) -> list[Tensor]:
        """Draw the start: Kaiming normal for convolutions, one and zero for normalisations.

        In the order in which `generate` takes them: each convolution is followed by a scale and a shift.
        """
        widths = block_widths(self.width, max(shape[1:]))
        kernels = [(self.code, self.width, 4, 4)]
        for before, after in zip([self.width, *widths[:-1]], widths, strict=True):
            kernels += [(after, before, 3, 3), (after, after, 3, 3)]
        tensors: list[Tensor] = []
        for i, (a, b, h, w) in enumerate(kernels):
            fan, out = (a, b) if i == 0 else (b * h * w, a)  # the first is transposed: one code reaches each pixel
            tensors.append(torch.randn(a, b, h, w, generator=generator) * (2 / fan) ** 0.5)
            tensors += [torch.ones(out), torch.zeros(out)]
        last = torch.randn(shape[0], widths[-1], 1, 1, generator=generator) / widths[-1] ** 0.5
        return [*tensors, last, torch.zeros(shape[0])]


def block_widths(width: int, side: int) -> list[int]:
    """Return the channels of the blocks at the sides 4, 8, 16, ... up to the first that covers `side`.

    >>> block_widths(256, 32), block_widths(256, 224)
    ([256, 256, 256, 256], [256, 256, 256, 256, 128, 64, 64])
    """
    widths, reached = [width], 4
    while reached < side:
        reached *= 2
        halvings = min(2, max(0, (reached // FULL_WIDTH_SIDE).bit_length() - 1))
        widths.append(max(1, width >> halvings))
    return widths


def generate(code: Tensor, tensors: Sequence[Tensor]) -> Tensor:
    """Run the generator with the given weights; its values are in (0, 1).  # (n, code, 1, 1) -> (n, c, side, side)"""
    layers = [tensors[i : i + 3] for i in range(0, len(tensors) - 2, 3)]
    kernel, scale, shift = layers[0]
    x = _activated(F.conv_transpose2d(code, kernel), scale, shift)
    for i, (kernel, scale, shift) in enumerate(layers[1:]):
        if i % 2 == 0 and i > 0:
            x = F.interpolate(x, scale_factor=2.0)
        x = _activated(F.conv2d(x, kernel, padding=1), scale, shift)
    return torch.sigmoid(F.conv2d(x, tensors[-2], tensors[-1]))


def _activated(x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """Apply batch normalisation by the batch's own statistics, then leaky ReLU."""
    return F.leaky_relu(F.batch_norm(x, None, None, scale, shift, training=True), SLOPE)
