"""Gaussian noise."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from fedglass.core.papers import DLFA
from fedglass.core.params import Update
from fedglass.core.registry import register
from fedglass.defend import checks
from fedglass.defend.draws import normal
from fedglass.defend.per_example import PerExample
from fedglass.defend.same_each_epoch import SameEachEpoch
from fedglass.fl.release import Outgoing


@register("defences", "gaussian_noise", summary="Gaussian noise on the update", paper=DLFA)
@dataclass(frozen=True)
class GaussianNoise:
    """u + n with independent n ~ N(0, std^2) at every entry [Dimitrov et al., 2022, Appendix C.1].

    `std` is absolute: it does not follow the size of the update. On an update it is in the unit of the weights,
    that is, the learning rate times what it would be on one gradient.

    >>> GaussianNoise(std=0.0).release(Outgoing({"w": torch.ones(2)}, torch.Generator()))
    {'w': tensor([1., 1.])}
    """

    std: float

    def __post_init__(self) -> None:
        checks.at_least_zero(self, "std")

    def release(self, leaving: Outgoing) -> Update:
        noise = self.mean_noise(leaving.update, 1, leaving.generator)
        return {name: tensor + noise[name] for name, tensor in leaving.update.items()}

    def mean_noise(self, like: Update, examples: int, generator: torch.Generator) -> Update:
        """The mean of the noise of that many examples, drawn at once.

        The mean of n independent N(0, std^2) is N(0, std^2 / n): the same distribution, for 1/n of the work.
        """
        std = self.std / math.sqrt(examples)
        return {name: std * normal(tensor, generator) for name, tensor in like.items()}


@register(
    "defences",
    "gaussian_noise_per_example",
    summary="Gaussian noise on each example's gradient in every local step",
    paper=DLFA,
)
def gaussian_noise_per_example(std: float) -> PerExample:
    """Gaussian noise on each example's gradient."""
    return PerExample(GaussianNoise(std))


@register(
    "defences",
    "gaussian_noise_released",
    summary="the same with noise that repeats in every epoch, as released",
    paper=DLFA,
)
def gaussian_noise_released(std: float) -> SameEachEpoch:
    """The same, repeated in every epoch as in the release of DLFA."""
    return SameEachEpoch(PerExample(GaussianNoise(std)))
