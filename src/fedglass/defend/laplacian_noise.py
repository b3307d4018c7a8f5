"""Laplacian noise."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedglass.core.params import Update
from fedglass.defend import checks
from fedglass.defend.draws import laplace
from fedglass.fl.release import Outgoing


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
