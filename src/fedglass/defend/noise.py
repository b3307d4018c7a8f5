"""Defences that clip an update or add random noise to it, and the random tensors that defences draw.

Random tensors have the type and the device of another tensor. They are drawn on the device of the generator, so that
one seed gives one result on every device.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedglass.core.registry import register
from fedglass.core.tensors import Update
from fedglass.core.text import DLFA
from fedglass.defend.per_example import (
    AdditiveNoise,
    Strength,
    check_at_least_zero,
    check_positive,
    register_gradient_forms,
)
from fedglass.fl.release import Outgoing

ABADI = (
    "Abadi, Chu, Goodfellow, McMahan, Mironov, Talwar, Zhang: Deep Learning with Differential Privacy, CCS 2016, "
    "https://arxiv.org/abs/1607.00133"
)


def normal(like: Tensor, generator: torch.Generator) -> Tensor:
    """Draw independent standard normal entries."""
    return torch.randn(like.shape, generator=generator, dtype=like.dtype, device=generator.device).to(like.device)


def uniform(like: Tensor, generator: torch.Generator) -> Tensor:
    """Draw independent entries, uniform in [0, 1)."""
    return torch.rand(like.shape, generator=generator, dtype=like.dtype, device=generator.device).to(like.device)


def laplace(like: Tensor, generator: torch.Generator) -> Tensor:
    """Draw independent Laplace entries of scale 1, as differences of exponential ones, which are never infinite."""
    pair = torch.empty((2, *like.shape), dtype=like.dtype, device=generator.device).exponential_(generator=generator)
    return (pair[0] - pair[1]).to(like.device)


@register("defences", "clip", summary="the update scaled down to a maximal L2 norm", paper=ABADI)
@dataclass(frozen=True)
class Clip:
    """u / max(1, ||u|| / norm), with the L2 norm over all parameters together [Abadi et al., 2016, Section 3.1].

    >>> Clip(norm=1.0).release(Outgoing({"w": torch.tensor([3.0, 4.0])}, torch.Generator()))
    {'w': tensor([0.6000, 0.8000])}
    """

    norm: float
    strength: ClassVar = Strength("norm", 10.0, 0.001)

    def __post_init__(self) -> None:
        check_positive(self, "norm")

    def release(self, leaving: Outgoing) -> Update:
        length = norm_of(leaving.update)
        if length <= self.norm:
            return leaving.update
        return {name: tensor * (self.norm / length) for name, tensor in leaving.update.items()}


def norm_of(update: Update) -> Tensor:
    """Return the L2 norm over all parameters together."""
    length: Tensor = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(t) for t in update.values()]))
    return length


@register_gradient_forms("gaussian_noise", "Gaussian noise on each example's gradient in every local step")
@register("defences", "gaussian_noise", summary="Gaussian noise on the update", paper=DLFA)
@dataclass(frozen=True)
class GaussianNoise(AdditiveNoise):
    """u + n with independent n ~ N(0, std^2) at every entry [Dimitrov et al., 2022, Appendix C.1].

    `std` is absolute: it does not follow the size of the update. On an update it is in the unit of the weights,
    that is, the learning rate times what it would be on one gradient.

    >>> GaussianNoise(std=0.0).release(Outgoing({"w": torch.ones(2)}, torch.Generator()))
    {'w': tensor([1., 1.])}
    """

    std: float
    strength: ClassVar = Strength("std", 1e-5, 1.0)

    def __post_init__(self) -> None:
        check_at_least_zero(self, "std")

    def mean_noise(self, like: Update, examples: int, generator: torch.Generator) -> Update:
        """Draw the mean of the noise of that many examples at once.

        The mean of n independent N(0, std^2) is N(0, std^2 / n): the same distribution, for 1/n of the work.
        """
        std = self.std / math.sqrt(examples)
        return {name: std * normal(tensor, generator) for name, tensor in like.items()}


@register_gradient_forms("laplacian_noise", "Laplacian noise on each example's gradient in every local step")
@register("defences", "laplacian_noise", summary="Laplacian noise on the update", paper=DLFA)
@dataclass(frozen=True)
class LaplacianNoise(AdditiveNoise):
    """u + n with independent n ~ Laplace(0, scale) at every entry [Dimitrov et al., 2022, Appendix C.1].

    The standard deviation is sqrt(2) times `scale`. The paper's Table 6 calls its parameter sigma; the paper's
    release passes it as the scale, which is what is taken here.

    >>> LaplacianNoise(scale=0.0).release(Outgoing({"w": torch.ones(2)}, torch.Generator()))
    {'w': tensor([1., 1.])}
    """

    scale: float
    strength: ClassVar = Strength("scale", 1e-5, 1.0)

    def __post_init__(self) -> None:
        check_at_least_zero(self, "scale")

    def mean_noise(self, like: Update, examples: int, generator: torch.Generator) -> Update:
        """Draw the mean of the noise of that many examples. It is not Laplacian, so each one is drawn."""

        def mean(tensor: Tensor) -> Tensor:
            total = torch.zeros_like(tensor)
            for _ in range(examples):
                total += laplace(tensor, generator)
            return total * (self.scale / examples)

        return {name: mean(tensor) for name, tensor in like.items()}
