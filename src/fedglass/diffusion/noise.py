"""How noise is mixed into images, and what a network that is asked to take it out again may answer.

x_t = sqrt(abar_t) x_0 + sqrt(1 - abar_t) eps with abar_t = prod_{s <= t} (1 - beta_s) [Ho et al., 2020, Eq. 4]. Images
are in [-1, 1]. In units of the image, x_t / sqrt(abar_t) = x_0 + sigma_t eps with sigma_t^2 = (1 - abar_t) / abar_t.
"""

from __future__ import annotations

import enum
import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor

from fedglass.core.errors import UsageError

MOST_STEPS = 10_000


def _linear(steps: int, first: float, last: float) -> Tensor:
    return torch.linspace(first, last, steps, dtype=torch.float64)


def _scaled_linear(steps: int, first: float, last: float) -> Tensor:
    """Linear in the root, as latent diffusion has it [Rombach et al., 2022]."""
    return torch.linspace(math.sqrt(first), math.sqrt(last), steps, dtype=torch.float64).square()


def _cosine(steps: int, first: float, last: float) -> Tensor:
    """From abar_t = cos^2 with betas of at most 0.999 [Nichol and Dhariwal, 2021, Eq. 17], whatever the ends."""
    t = torch.linspace(0, 1, steps + 1, dtype=torch.float64)
    abar = torch.cos((t + 0.008) / 1.008 * math.pi / 2).square()
    return (1 - abar[1:] / abar[:-1]).clamp(max=0.999)


SHAPES: Mapping[str, Callable[[int, float, float], Tensor]] = MappingProxyType(
    {"linear": _linear, "scaled_linear": _scaled_linear, "squaredcos_cap_v2": _cosine}
)
"""How the betas run from the first to the last, under the names that a scheduler_config.json has for it."""


@dataclass(frozen=True)
class Schedule:
    """The betas; step t is counted from 0.

    >>> schedule = Schedule()
    >>> round(float(schedule.sigma[0]), 4), round(float(schedule.sigma[-1]), 1)
    (0.01, 157.4)
    """

    steps: int = 1000
    first: float = 1e-4
    last: float = 0.02
    shape: str = "linear"

    def __post_init__(self) -> None:
        if not 2 <= self.steps <= MOST_STEPS:
            raise UsageError(f"A noise schedule needs 2 to {MOST_STEPS} steps, got {self.steps}.")
        if self.shape not in SHAPES:
            raise UsageError(f"A noise schedule's shape must be one of {', '.join(SHAPES)}, got {self.shape!r}.")
        if not 0 < self.first <= self.last < 1:
            raise UsageError(f"A noise schedule needs 0 < first <= last < 1, got {self.first} and {self.last}.")

    @property
    def abar(self) -> Tensor:
        """The share of the image's variance that is left after each step.  # (steps,), float64"""
        return _abar(self)

    @property
    def sigma(self) -> Tensor:
        """The noise after each step in units of the image, growing.  # (steps,), float64"""
        return ((1 - self.abar) / self.abar).sqrt()

    def step_of(self, sigma: Tensor) -> Tensor:
        """The step whose noise is nearest to each sigma on a logarithmic scale."""
        logs = self.sigma.log()
        middles = (logs[1:] + logs[:-1]) / 2
        return torch.bucketize(sigma.double().log(), middles)

    def noised(self, images: Tensor, steps: Tensor, noise: Tensor) -> Tensor:
        """x_t of each image.  # images and noise (n, c, h, w), steps (n,)"""
        kept = self.kept(steps, images)
        return kept.sqrt() * images + (1 - kept).sqrt() * noise

    def kept(self, steps: Tensor, like: Tensor) -> Tensor:
        """abar of each step, as numbers that images can be multiplied with.  # (n, 1, 1, 1)"""
        return self.abar[steps.cpu()].to(like).view(-1, *[1] * (like.ndim - 1))


@functools.lru_cache(maxsize=8)
def _abar(schedule: Schedule) -> Tensor:
    betas = SHAPES[schedule.shape](schedule.steps, schedule.first, schedule.last)
    return torch.cumprod(1 - betas, 0)


class Prediction(enum.Enum):
    """What a network answers, under the names that a scheduler_config.json has for it."""

    EPSILON = "epsilon"
    """The noise itself [Ho et al., 2020, Eq. 12]."""
    V = "v_prediction"
    """v = sqrt(abar) eps - sqrt(1 - abar) x_0, whose error counts alike at all noises [Salimans and Ho, 2022]."""
    SAMPLE = "sample"
    """The clean image."""

    def __repr__(self) -> str:
        return f"Prediction.{self.name}"

    def target(self, images: Tensor, noise: Tensor, kept: Tensor) -> Tensor:
        """What the network is to answer; `kept` is abar."""
        match self:
            case Prediction.EPSILON:
                return noise
            case Prediction.V:
                return kept.sqrt() * noise - (1 - kept).sqrt() * images
            case Prediction.SAMPLE:
                return images

    def clean(self, answer: Tensor, noisy: Tensor, kept: Tensor) -> Tensor:
        """The clean image that the answer stands for."""
        match self:
            case Prediction.EPSILON:
                return (noisy - (1 - kept).sqrt() * answer) / kept.sqrt()
            case Prediction.V:
                return kept.sqrt() * noisy - (1 - kept).sqrt() * answer
            case Prediction.SAMPLE:
                return answer


def noise_in(noisy: Tensor, clean: Tensor, kept: Tensor) -> Tensor:
    """The noise that x_t holds where the clean image is this."""
    return (noisy - kept.sqrt() * clean) / (1 - kept).sqrt()


def drawn_steps(schedule: Schedule, count: int, generator: torch.Generator) -> Tensor:
    """Steps to train on: every other one uniform, the rest log-uniform in sigma from 0.01 to the largest.

    Uniform steps alone are mostly steps of strong noise; restoration works at weak noise.  # (count,), int64
    """
    uniform = torch.randint(schedule.steps, (count,), generator=generator)
    low, high = schedule.sigma[0].log(), schedule.sigma[-1].log()
    share = torch.rand(count, generator=generator, dtype=torch.float64)
    logarithmic = schedule.step_of((low + share * (high - low)).exp())
    return torch.where(torch.arange(count) % 2 == 0, uniform, logarithmic)
