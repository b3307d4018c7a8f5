"""Differentially private SGD."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedglass.core.registry import register
from fedglass.defend import checks
from fedglass.defend.clip import PAPER
from fedglass.defend.draws import normal
from fedglass.defend.example_gradients import example_gradients, noise_source
from fedglass.fl.local import Step


@register("defences", "dpsgd", summary="examples' gradients clipped, Gaussian noise, in every local step", paper=PAPER)
@dataclass(frozen=True)
class DPSGD:
    """(sum_i g_i / max(1, ||g_i|| / C) + n) / B, n ~ N(0, (z C)^2 I) [Abadi et al., 2016, Algorithm 1].

    C is `clip`, z is `noise_multiplier`, B the size of the batch. Batches here are slices of a shuffled epoch, where
    the paper and the accountants draw each example independently; a short last batch is divided by its own size,
    where Opacus divides by the expected one. With `noise_multiplier=0` and a large clip it is plain SGD.
    """

    clip: float
    noise_multiplier: float

    def __post_init__(self) -> None:
        checks.positive(self, "clip")
        checks.at_least_zero(self, "noise_multiplier")

    def gradient(self, step: Step) -> Sequence[Tensor]:
        generator = noise_source(step)
        total = [torch.zeros_like(w) for w in step.weights]
        for chunk in example_gradients(step):
            scale = (self.clip / _norms(chunk)).clamp(max=1.0)  # (chunk,)
            total = [t + torch.tensordot(scale, g, dims=1) for t, g in zip(total, chunk, strict=True)]
        std, size = self.noise_multiplier * self.clip, len(step.inputs)
        return [(t + std * normal(t, generator)) / size for t in total]


def _norms(chunk: Sequence[Tensor]) -> Tensor:
    """The L2 norm of each example's gradient over all parameters.  # (chunk, *shape) each -> (chunk,)"""
    layers = torch.stack([torch.linalg.vector_norm(g.reshape(len(g), -1), dim=1) for g in chunk])  # (layers, chunk)
    norms: Tensor = torch.linalg.vector_norm(layers, dim=0)
    return norms
