"""Sampling without chance: the same start always gives the same picture [Song et al., 2021, DDIM with eta 0].

In units of the image, xbar_t = x_t / sqrt(abar_t), a step from sigma to sigma' is xbar + (sigma' - sigma) eps(x_t).
With the noise predictions eps taken as constants, as the masked diffusion enhancer does [the curious client's paper,
Section 3.3], the end is therefore affine in the start: x_0 = x_T / sqrt(abar_T) + const. Its derivative is a number,
and neither a graph over the steps nor their intermediate pictures need be kept.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor

from fedglass.core.errors import UsageError
from fedglass.diffusion.denoiser import Denoiser
from fedglass.diffusion.noise import Schedule, noise_in


def spaced_steps(schedule: Schedule, count: int) -> list[int]:
    """So many steps of a schedule, evenly spaced from the last to the first.

    >>> spaced_steps(Schedule(), 4)
    [999, 666, 333, 0]
    """
    if not 2 <= count <= schedule.steps:
        raise UsageError(f"Sampling takes between 2 and {schedule.steps} steps with this model, got {count}.")
    return torch.linspace(schedule.steps - 1, 0, count, dtype=torch.float64).round().long().tolist()


@torch.no_grad()
def end_of(denoiser: Denoiser, start: Tensor, count: int, labels: Tensor | None = None) -> Tensor:
    """x_0 from x_T in so many steps; nothing of the way is kept.  # (n, c, h, w) both"""
    steps = spaced_steps(denoiser.schedule, count)
    noisy = start
    for step, following in pairwise(steps):
        clean = denoiser.clean(noisy, step, labels)
        kept, left = (_kept(denoiser.schedule, t) for t in (step, following))
        noise = noise_in(noisy, clean, noisy.new_tensor(kept))
        noisy = left**0.5 * clean + (1 - left) ** 0.5 * noise
    return denoiser.clean(noisy, steps[-1], labels)


def slope(schedule: Schedule) -> float:
    """d x_0 / d x_T with the noise predictions held constant: 1 / sqrt(abar_T)."""
    return _kept(schedule, schedule.steps - 1) ** -0.5


def _kept(schedule: Schedule, step: int) -> float:
    return float(schedule.abar[step])
