"""When a search for a start of sampling has gone far enough: beyond, it copies the flaws of the raw image.

A rule sees no truth: the raw images, how far the pictures still are from them, and the starts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from fedglass.core.errors import UsageError


@dataclass(frozen=True, eq=False)
class Way:
    """All that a rule is told after an epoch."""

    errors: Tensor  # (epochs so far, n): squared errors of the pictures' pixels to the raw images
    starts: Tensor  # (n, ...): where the pictures are sampled from
    raw: Tensor  # (n, c, h, w), pixels before whitening


class Stopping(Protocol):
    """Says of each image whether it is to be taken as it is now."""

    def stops(self, way: Way) -> Tensor:
        """Whether each image is done.  # (n,), bool"""
        ...


@dataclass(frozen=True)
class NoiseLevel:
    """Once the picture differs from the raw image by no more than the raw image's own noise [Morozov, 1966].

    What is nearer than that can only be nearer to the noise. The noise is estimated from second differences in both
    directions, which pass over smooth surfaces and straight edges [Immerkaer, 1996]; it must be white, which that of
    an enlarged image is not.
    """

    factor: float = 1.0

    def stops(self, way: Way) -> Tensor:
        return way.errors[-1] <= self.factor * noise_of(way.raw).square()


@dataclass(frozen=True)
class Flattening:
    """Once the last `over` epochs have won less than a share of all that was won: the knee of the curve.

    What is won first is the shape that sample and raw image can share; what is won slowly afterwards is copied from the
    raw image against the model. It needs no estimate of the raw image's noise, which is not white where a search
    enlarged what it found at low resolution: there `NoiseLevel` never stops.
    """

    share: float = 0.1
    over: int = 5

    def __post_init__(self) -> None:
        if self.over < 1 or self.share < 0:
            raise UsageError(f"Flattening looks over at least 1 epoch and a share of at least 0, got {self}.")

    def stops(self, way: Way) -> Tensor:
        if len(way.errors) <= self.over:
            return torch.zeros_like(way.errors[-1], dtype=torch.bool)
        least = way.errors.amin(0)
        before = way.errors[: -self.over].amin(0)
        return before - least <= self.share * (way.errors[0] - least)


@dataclass(frozen=True)
class WhiteStart:
    """Once the start is no longer white noise: neighbours in it agree by more standard deviations than chance explains.

    The network was trained to sample from white noise alone, and there its samples look like real images. The search
    prints the raw image into the start, for it cares for nothing else; from where that shows on, pictures are no longer
    samples and begin to blur. Products of neighbours have mean 0 and variance 1 in white noise, so that their sum over
    the root of their number says by how many standard deviations a start departs.
    """

    deviations: float = 3.0

    def __post_init__(self) -> None:
        if self.deviations <= 0:
            raise UsageError(f"A start may deviate by more than 0 standard deviations, got {self.deviations}.")

    def stops(self, way: Way) -> Tensor:
        return agreement(way.starts) > self.deviations


@dataclass(frozen=True)
class OracleEpoch:
    """At a given epoch: the paper's choice, made by an eye that knows what the truth looks like.

    To choose it, look at the film of a run with the largest number of epochs.
    """

    epoch: int

    def __post_init__(self) -> None:
        if self.epoch < 0:
            raise UsageError(f"The epoch at which to stop must not be negative, got {self.epoch}.")

    def stops(self, way: Way) -> Tensor:
        return torch.full_like(way.errors[-1], len(way.errors) > self.epoch, dtype=torch.bool)


def agreement(starts: Tensor) -> Tensor:
    """By how many standard deviations neighbours agree more than those of white noise.  # (n, c, h, w) -> (n,)

    >>> float(agreement(torch.ones(1, 1, 2, 2)))
    2.0
    """
    across = starts[..., 1:] * starts[..., :-1]
    down = starts[..., 1:, :] * starts[..., :-1, :]
    products = torch.cat([across.flatten(1), down.flatten(1)], 1)
    return products.sum(1) / math.sqrt(max(1, products.shape[1]))


def noise_of(images: Tensor) -> Tensor:
    """The standard deviation of each image's white noise.  # (n, c, h, w) -> (n,)

    >>> flat = torch.full((1, 1, 9, 9), 0.5)
    >>> float(noise_of(flat))
    0.0
    """
    kernel = images.new_tensor([[1.0, -2.0, 1.0], [-2.0, 4.0, -2.0], [1.0, -2.0, 1.0]])
    planes = images.flatten(0, 1)[:, None]
    found = torch.nn.functional.conv2d(planes, kernel[None, None]).abs().flatten(1).mean(1)
    return math.sqrt(math.pi / 2) / 6 * found.view(len(images), -1).mean(1)
