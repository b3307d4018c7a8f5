"""The first layers of a network: without strides for thumbnails, with strides for photographs."""

from __future__ import annotations

import enum
from collections.abc import Callable

import torch
from torch import nn

Shape = tuple[int, int, int]
"""Channels, height and width of one input."""


class Stem(enum.Enum):
    """The two kinds of first layers: SMALL keeps the resolution (for 32x32), LARGE is torchvision's (for 224x224)."""

    SMALL = "small"
    LARGE = "large"

    def __repr__(self) -> str:
        return f"Stem.{self.name}"


def stem_for(shape: Shape) -> Stem:
    """Return SMALL for inputs with at most 64 pixels on the longer side, otherwise LARGE.

    >>> stem_for((3, 32, 32)), stem_for((3, 224, 160))
    (Stem.SMALL, Stem.LARGE)
    """
    return Stem.SMALL if max(shape[1:]) <= 64 else Stem.LARGE


def with_stem(make: Callable[..., nn.Module], **options: type[nn.Module]) -> Callable[..., nn.Module]:
    """Return a factory of models that takes the stem from the shape of the input."""

    def model(*, shape: Shape, classes: int) -> nn.Module:
        return make(shape=shape, classes=classes, stem=stem_for(shape), **options)

    return model


def first_convolution(stem: Stem, channels: int, width: int) -> nn.Conv2d:
    """Return a convolution of 3x3 with stride 1, or of 7x7 with stride 2 [He et al., 2016]."""
    if stem is Stem.SMALL:
        return nn.Conv2d(channels, width, kernel_size=3, padding=1, bias=False)
    return nn.Conv2d(channels, width, kernel_size=7, stride=2, padding=3, bias=False)


def first_pool(stem: Stem) -> nn.Module:
    """Return no pooling, or the maximum over 3x3 with stride 2 [He et al., 2016]."""
    return nn.Identity() if stem is Stem.SMALL else nn.MaxPool2d(kernel_size=3, stride=2, padding=1)


def output_size(body: Callable[[torch.Tensor], torch.Tensor], shape: Shape) -> int:
    """Return the number of values that the body makes of one input of that shape.

    >>> output_size(nn.AvgPool2d(2), (3, 32, 20))
    480
    """
    with torch.no_grad():
        return int(body(torch.zeros(1, *shape)).numel())
