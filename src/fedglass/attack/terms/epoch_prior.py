"""Epoch-order-invariant priors: the set of images is the same in each epoch, whatever their order.

L_inv = 1/E^2 sum_{e1, e2} D(g(X_e1), g(X_e2)) [Dimitrov et al., 2022, Eq. 3], with g an order-invariant summary
of an epoch's images. Both distances are means over the entries of g, as in the paper's release. Neither needs
E^2 work: over all pairs the squared difference is twice the variance, and the absolute difference is a weighted
sum of the sorted values.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from fedglass.attack.parts import Binding, BoundTerm
from fedglass.attack.terms.term import Term
from fedglass.core.rng import stream

BoundSummary = Callable[[Tensor], Tensor]
"""(epochs, n, c, h, w) -> (epochs, ...)"""


class Summary(Protocol):
    """g: a summary of each epoch's images that does not depend on their order."""

    def bind(self, binding: Binding) -> BoundSummary: ...


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
            # `max` remembers where the maximum was, `amax` the whole convolution, which for many epochs is gigabytes.
            return torch.stack([F.conv2d(epoch, kernel, padding=1).max(0).values for epoch in images])

        return summarise


class _EpochPrior(Term, ABC):
    summary: Summary

    def bind(self, binding: Binding) -> BoundTerm:
        summarise = self.summary.bind(binding)
        return lambda at: self.spread(summarise(at.candidate.images))

    @abstractmethod
    def spread(self, values: Tensor) -> Tensor:
        """Mean distance over all ordered pairs of epochs.  # (epochs, ...) -> ()"""


@dataclass(frozen=True)
class SquaredEpochPrior(_EpochPrior):
    """D the mean squared difference: 1/E^2 sum of (a - b)^2 over all pairs is twice the variance."""

    summary: Summary = field(default_factory=Mean)

    def spread(self, values: Tensor) -> Tensor:
        return 2 * values.var(0, unbiased=False).mean()


@dataclass(frozen=True)
class AbsoluteEpochPrior(_EpochPrior):
    """D the mean absolute difference: sum of |a - b| over all pairs is 2 sum_i (2i + 1 - E) a_(i), sorted."""

    summary: Summary = field(default_factory=Mean)

    def spread(self, values: Tensor) -> Tensor:
        epochs = len(values)
        rank = torch.arange(epochs, device=values.device, dtype=values.dtype)
        weight = 2 * (2 * rank + 1 - epochs) / epochs**2
        return (weight @ values.sort(0).values.flatten(1)).mean()


def random_kernel(channels: int, seed: int, binding: Binding) -> Tensor:
    """A convolution drawn from N(0, 1 / fan in).  # (channels, c, 3, 3)"""
    c = binding.shape[0]
    drawn = torch.randn(channels, c, 3, 3, generator=stream(seed, "epoch prior"))
    kernel: Tensor = drawn / (9 * c) ** 0.5
    return kernel.to(binding.target[0])
