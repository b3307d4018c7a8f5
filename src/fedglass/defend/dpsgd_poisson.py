"""Differentially private SGD on Poisson samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedglass.core.registry import register
from fedglass.defend import checks
from fedglass.defend.clip import PAPER
from fedglass.defend.dpsgd import DPSGD
from fedglass.defend.draws import normal
from fedglass.defend.example_gradients import noise_source
from fedglass.fl.local import Step


@register("defences", "dpsgd_poisson", summary="dpsgd whose every local step draws a Poisson sample", paper=PAPER)
@dataclass(frozen=True)
class PoissonDPSGD(DPSGD):
    """(sum_{i in S} g_i / max(1, ||g_i|| / C) + n) / (q B), n ~ N(0, (z C)^2 I) [Abadi et al., 2016, Algorithm 1].

    Each example of the batch is in S by itself with probability q, `sample_rate`, and B is the size of the batch, so
    that the sum is divided by the expected size of S, as Opacus does. Privacy gains by sampling only where the batch
    is all that the client has: leave training.batch_size out, and count with training.steps.
    """

    sample_rate: float

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.positive(self, "sample_rate")
        checks.closed_share(self, "sample_rate")

    def gradient(self, step: Step) -> Sequence[Tensor]:
        generator, count = noise_source(step), len(step.inputs)
        chosen = (torch.rand(count, generator=generator, device=generator.device) < self.sample_rate).to(
            step.inputs.device
        )
        expected, size = self.sample_rate * count, int(chosen.sum())
        if not size:
            std = self.noise_multiplier * self.clip / expected
            return [std * normal(w.detach(), generator) for w in step.weights]
        sampled = replace(step, inputs=step.inputs[chosen], targets=step.targets[chosen])
        return [g * (size / expected) for g in super().gradient(sampled)]
