"""Images written as their pixels."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedglass.attack.parts import Bound
from fedglass.core.types import Observation, Unknown


@dataclass(frozen=True)
class Pixels:
    """One image for each example, in whitened coordinates, kept inside the pixel bounds by projection.

    Starts from N(0, 1) in whitened coordinates, projected, or from the previous stage's images.
    """

    def bind(self, observation: Observation, generator: torch.Generator, start: Tensor | None) -> Bound:
        low, high = whitened_bounds(observation)
        first = whitened_noise(observation, generator, epochs=1) if start is None else start[:1]
        unknown = Unknown(first.clamp(low, high), low, high)
        return Bound((unknown,), lambda tensors: tensors[0], lambda images: images.clamp(low, high))


@dataclass(frozen=True)
class FreePixels:
    """One image for each example, without bounds, as in Deep Leakage from Gradients [Zhu et al., 2019]."""

    def bind(self, observation: Observation, generator: torch.Generator, start: Tensor | None) -> Bound:
        first = whitened_noise(observation, generator, epochs=1) if start is None else start[:1]
        return Bound((Unknown(first),), lambda tensors: tensors[0])


def whitened_noise(observation: Observation, generator: torch.Generator, epochs: int) -> Tensor:
    """Standard normal images on the message's device, of its type.  # (epochs, n, c, h, w)"""
    knows = observation.knows
    noise = torch.randn(epochs, knows.examples, *knows.shape, generator=generator)
    return noise.to(like(observation))


def whitened_bounds(observation: Observation) -> tuple[Tensor, Tensor]:
    """The pixel bounds, whitened, on the message's device, of its type.  # (c, 1, 1) each"""
    low, high = observation.knows.bounds()
    return low.to(like(observation)), high.to(like(observation))


def like(observation: Observation) -> Tensor:
    """A tensor of the message, whose device and type are those of the attack's own."""
    return next(iter(observation.update.values()))


def device_of(observation: Observation) -> torch.device:
    return like(observation).device
