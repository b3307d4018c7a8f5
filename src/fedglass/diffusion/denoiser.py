"""A network together with the schedule that it was trained for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from fedglass.diffusion.noise import Prediction, Schedule

Network = Callable[[Tensor, Tensor, Tensor | None], Tensor]
"""(noisy images, their steps, their labels or None) -> an answer of the images' shape.  # (n, c, h, w), (n,), (n,)"""


class Decoder(Protocol):
    """Makes images of latents, where a network denoises latents."""

    shape: tuple[int, int, int]
    """Of the images."""
    latent_shape: tuple[int, int, int]

    def decode(self, latents: Tensor) -> Tensor: ...


@dataclass(frozen=True, eq=False)
class Denoiser:
    """Gives the clean image that a noisy one most likely was; images are in [-1, 1]."""

    network: Network
    schedule: Schedule = field(default_factory=Schedule)
    prediction: Prediction = Prediction.V
    shape: tuple[int, int, int] | None = None
    """Channels, height and width of the images that it was trained on; None where any will do."""
    clamp: bool = True
    """Whether clean images are kept in [-1, 1], which stops errors from growing over the steps."""
    decoder: Decoder | None = None
    """What makes images of what the network denoises; None where that is images already."""

    def clean(self, noisy: Tensor, step: int, labels: Tensor | None = None) -> Tensor:
        """E[x_0 | x_t] as the network sees it, all images at the same step.  # (n, c, h, w)"""
        steps = torch.full((len(noisy),), step, dtype=torch.int64, device=noisy.device)
        answer = self.network(noisy, steps, labels)
        clean = self.prediction.clean(answer, noisy, self.schedule.kept(steps, noisy))
        return clean.clamp(-1, 1) if self.clamp else clean
