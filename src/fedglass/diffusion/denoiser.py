"""A network together with the schedule that it was trained for."""

from __future__ import annotations

import enum
import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedglass.core.errors import UsageError

if TYPE_CHECKING:
    from fedglass.diffusion.autoencoders import LatentSpace

# How noise is mixed into images, and what a network that is asked to take it out again may answer.
#
# x_t = sqrt(abar_t) x_0 + sqrt(1 - abar_t) eps with abar_t = prod_{s <= t} (1 - beta_s) [Ho et al., 2020, Eq. 4].
# Images
# are in [-1, 1]. In units of the image, x_t / sqrt(abar_t) = x_0 + sigma_t eps with sigma_t^2 = (1 - abar_t) / abar_t.


MOST_STEPS = 10_000


SHAPES = ("linear", "scaled_linear", "squaredcos_cap_v2")
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
        abar = self.abar_of(steps, images)
        return abar.sqrt() * images + (1 - abar).sqrt() * noise

    def abar_of(self, steps: Tensor, like: Tensor) -> Tensor:
        """abar of each step, as numbers that images can be multiplied with.  # (n, 1, 1, 1)"""
        return self.abar[steps.cpu()].to(like).view(-1, *[1] * (like.ndim - 1))


@functools.lru_cache(maxsize=8)
def _abar(schedule: Schedule) -> Tensor:
    return torch.cumprod(1 - betas(schedule), 0)


def betas(schedule: Schedule) -> Tensor:
    """Return the betas of a schedule.  # (steps,), float64"""
    steps, first, last = schedule.steps, schedule.first, schedule.last
    if schedule.shape == "linear":
        return torch.linspace(first, last, steps, dtype=torch.float64)
    if schedule.shape == "scaled_linear":  # linear in the root, as latent diffusion has it [Rombach et al., 2022]
        return torch.linspace(math.sqrt(first), math.sqrt(last), steps, dtype=torch.float64).square()
    # From abar_t = cos^2, whatever the ends [Nichol and Dhariwal, 2021, Eq. 17].
    t = torch.linspace(0, 1, steps + 1, dtype=torch.float64)
    abar = torch.cos((t + 0.008) / 1.008 * math.pi / 2).square()
    return (1 - abar[1:] / abar[:-1]).clamp(max=0.999)


class Prediction(enum.Enum):
    """The quantity that a network predicts, under its name in a scheduler_config.json."""

    EPSILON = "epsilon"
    """The noise itself [Ho et al., 2020, Eq. 12]."""
    V = "v_prediction"
    """v = sqrt(abar) eps - sqrt(1 - abar) x_0, whose error counts alike at all noises [Salimans and Ho, 2022]."""
    SAMPLE = "sample"
    """The clean image."""

    def __repr__(self) -> str:
        return f"Prediction.{self.name}"

    def target(self, images: Tensor, noise: Tensor, abar: Tensor) -> Tensor:
        """Return the correct prediction of the network."""
        match self:
            case Prediction.EPSILON:
                return noise
            case Prediction.V:
                return abar.sqrt() * noise - (1 - abar).sqrt() * images
            case Prediction.SAMPLE:
                return images

    def clean(self, answer: Tensor, noisy: Tensor, abar: Tensor) -> Tensor:
        """Return the clean image that a prediction stands for."""
        match self:
            case Prediction.EPSILON:
                return (noisy - (1 - abar).sqrt() * answer) / abar.sqrt()
            case Prediction.V:
                return abar.sqrt() * noisy - (1 - abar).sqrt() * answer
            case Prediction.SAMPLE:
                return answer


def noise_in(noisy: Tensor, clean: Tensor, abar: Tensor) -> Tensor:
    """Return the noise in x_t, given the clean image."""
    return (noisy - abar.sqrt() * clean) / (1 - abar).sqrt()


def drawn_steps(schedule: Schedule, count: int, generator: torch.Generator) -> Tensor:
    """Steps to train on: every other one uniform, the rest log-uniform in sigma from 0.01 to the largest.

    Uniform steps alone are mostly steps of strong noise; restoration works at weak noise.  # (count,), int64
    """
    uniform = torch.randint(schedule.steps, (count,), generator=generator)
    low, high = schedule.sigma[0].log(), schedule.sigma[-1].log()
    share = torch.rand(count, generator=generator, dtype=torch.float64)
    logarithmic = schedule.step_of((low + share * (high - low)).exp())
    return torch.where(torch.arange(count) % 2 == 0, uniform, logarithmic)


Network = Callable[[Tensor, Tensor, Tensor | None], Tensor]
"""(noisy images, their steps, their labels or None) -> an answer of the images' shape.  # (n, c, h, w), (n,), (n,)"""


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
    decoder: LatentSpace | None = None
    """What makes images of what the network denoises; None where that is images already."""

    def clean(self, noisy: Tensor, step: int, labels: Tensor | None = None) -> Tensor:
        """E[x_0 | x_t] as the network sees it, all images at the same step.  # (n, c, h, w)"""
        steps = torch.full((len(noisy),), step, dtype=torch.int64, device=noisy.device)
        answer = self.network(noisy, steps, labels)
        clean = self.prediction.clean(answer, noisy, self.schedule.abar_of(steps, noisy))
        return clean.clamp(-1, 1) if self.clamp else clean

    def decode(self, denoised: Tensor) -> Tensor:
        """Return denoised images or latents as images in [-1, 1].  # (n, *shape) -> (n, c, h, w)"""
        return denoised if self.decoder is None else self.decoder.decode(denoised)


# Images out of noise.


def spaced(schedule: Schedule, count: int) -> list[int]:
    """`count` steps from the noisiest to the least noisy, in equal numbers of the schedule's own between them.

    >>> spaced(Schedule(steps=1000), 4)
    [999, 749, 499, 249]
    """
    if not 1 <= count <= schedule.steps:
        raise UsageError(f"Sampling takes 1 to {schedule.steps} steps with this schedule, got {count}.")
    return [schedule.steps - 1 - math.floor(i * schedule.steps / count) for i in range(count)]


@torch.no_grad()
def sample(denoiser: Denoiser, start: Tensor, steps: int, labels: Tensor | None = None) -> Tensor:
    """Return the images in [-1, 1] that noise leads to, without further randomness.  # (n, c, h, w) both

    Each step takes x to x' = sqrt(abar') x_0 + sqrt(1 - abar') eps [Song et al., 2021, Eq. 12 with sigma = 0].
    """
    x, abar = start, denoiser.schedule.abar.tolist()
    way = spaced(denoiser.schedule, steps)
    for step, after in pairwise(way):
        clean = denoiser.clean(x, step, labels)
        noise = noise_in(x, clean, torch.tensor(abar[step], dtype=x.dtype))
        x = math.sqrt(abar[after]) * clean + math.sqrt(1 - abar[after]) * noise
    return denoiser.clean(x, way[-1], labels)


# Classifier-free guidance: answers for a class, exaggerated by their difference from those for none.


def with_guidance(network: Network, none: int, scale: float) -> Network:
    """Return none + scale (class - none) [Ho and Salimans, 2022, Eq. 6, with scale = 1 + w]; 1 is no guidance.

    `none` is the label that stands for no class. Clean image, noise and v are affine in each other at a given noisy
    image, so it is the same whichever the network answers with.
    """
    if scale < 0:
        raise UsageError(f"Guidance must not be negative, got {scale}.")

    def guided(noisy: Tensor, steps: Tensor, labels: Tensor | None) -> Tensor:
        if labels is None or scale == 1:
            return network(noisy, steps, labels)
        both = torch.cat([labels, torch.full_like(labels, none)])
        of_class, of_none = network(torch.cat([noisy, noisy]), torch.cat([steps, steps]), both).chunk(2)
        return of_none + scale * (of_class - of_none)

    return guided
