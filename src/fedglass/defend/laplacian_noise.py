"""Laplacian noise."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedglass.core.papers import DLFA
from fedglass.core.params import Update
from fedglass.core.registry import register
from fedglass.defend import checks
from fedglass.defend.draws import laplace
from fedglass.defend.per_example import PerExample
from fedglass.defend.same_each_epoch import SameEachEpoch
from fedglass.fl.release import Outgoing


@register("defences", "laplacian_noise", summary="Laplacian noise on the update", paper=DLFA)
@dataclass(frozen=True)
class LaplacianNoise:
    """u + n with independent n ~ Laplace(0, scale) at every entry [Dimitrov et al., 2022, Appendix C.1].

    The standard deviation is sqrt(2) times `scale`. The paper's Table 6 calls its parameter sigma; the paper's
    release passes it as the scale, which is what is taken here.

    >>> LaplacianNoise(scale=0.0).release(Outgoing({"w": torch.ones(2)}, torch.Generator()))
    {'w': tensor([1., 1.])}
    """

    scale: float

    def __post_init__(self) -> None:
        checks.at_least_zero(self, "scale")

    def release(self, leaving: Outgoing) -> Update:
        noise = self.mean_noise(leaving.update, 1, leaving.generator)
        return {name: tensor + noise[name] for name, tensor in leaving.update.items()}

    def mean_noise(self, like: Update, examples: int, generator: torch.Generator) -> Update:
        """The mean of the noise of that many examples. It is not Laplacian, so each one is drawn."""

        def mean(tensor: Tensor) -> Tensor:
            total = torch.zeros_like(tensor)
            for _ in range(examples):
                total += laplace(tensor, generator)
            return total * (self.scale / examples)

        return {name: mean(tensor) for name, tensor in like.items()}


@register(
    "defences",
    "laplacian_noise_per_example",
    summary="Laplacian noise on each example's gradient in every local step",
    paper=DLFA,
)
def laplacian_noise_per_example(scale: float) -> PerExample:
    """Laplacian noise on each example's gradient."""
    return PerExample(LaplacianNoise(scale))


@register(
    "defences",
    "laplacian_noise_released",
    summary="the same with noise that repeats in every epoch, as released",
    paper=DLFA,
)
def laplacian_noise_released(scale: float) -> SameEachEpoch:
    """The same, repeated in every epoch as in the release of DLFA."""
    return SameEachEpoch(PerExample(LaplacianNoise(scale)))
