"""Images out of noise."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from fedglass.core.errors import UsageError
from fedglass.diffusion.denoiser import Denoiser
from fedglass.diffusion.noise import Schedule, noise_in


def spaced(schedule: Schedule, count: int) -> list[int]:
    """`count` steps from the noisiest to the least noisy, in equal numbers of the schedule's own between them.

    >>> spaced(Schedule(steps=1000), 4)
    [999, 749, 499, 249]
    """
    if not 1 <= count <= schedule.steps:
        raise UsageError(f"Sampling takes 1 to {schedule.steps} steps with this schedule, got {count}.")
    return [schedule.steps - 1 - math.floor(i * schedule.steps / count) for i in range(count)]


@dataclass(frozen=True)
class Sampler:
    """x' = sqrt(abar') x_0 + sqrt(1 - abar' - s^2) eps + s n with s^2 = eta^2 (1 - abar')/(1 - abar) (1 - abar/abar').

    [Song et al., 2021, Eq. 12 and 16]: eta 0 is deterministic, eta 1 is the chain of [Ho et al., 2020].
    """

    steps: int = 50
    eta: float = 0.0

    @torch.no_grad()
    def sample(
        self, denoiser: Denoiser, shape: tuple[int, ...], generator: torch.Generator, labels: Tensor | None = None
    ) -> Tensor:
        """Images in [-1, 1] of that shape, from noise.  # (n, c, h, w)"""
        return self.end_of(denoiser, torch.randn(shape, generator=generator), generator, labels)

    @torch.no_grad()
    def end_of(
        self, denoiser: Denoiser, start: Tensor, generator: torch.Generator, labels: Tensor | None = None
    ) -> Tensor:
        """Where a start leads; with eta 0 nothing is drawn, and nothing of the way is kept.  # (n, c, h, w) both"""
        x = start
        way = spaced(denoiser.schedule, self.steps)
        for here, after in zip(way, [*way[1:], None], strict=True):
            clean = denoiser.clean(x, here, labels)
            if after is None:
                return clean
            x = self._moved(denoiser.schedule, x, clean, here, after, generator)
        raise AssertionError("a way has an end")

    def _moved(
        self, schedule: Schedule, x: Tensor, clean: Tensor, here: int, after: int, generator: torch.Generator
    ) -> Tensor:
        kept, then = float(schedule.abar[here]), float(schedule.abar[after])
        noise = noise_in(x, clean, torch.tensor(kept, dtype=x.dtype))
        fresh = self.eta * math.sqrt((1 - then) / (1 - kept) * (1 - kept / then))
        moved = math.sqrt(then) * clean + math.sqrt(max(0.0, 1 - then - fresh**2)) * noise
        return moved + fresh * torch.randn(x.shape, generator=generator) if fresh else moved
