"""The masked diffusion enhancer: a made-up picture of the right class that resembles the raw one."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from fedglass.attack.parts import Progress, Refinement
from fedglass.core.errors import UsageError
from fedglass.core.facts import Fact
from fedglass.core.registry import register
from fedglass.core.text import CURIOUS_CLIENT
from fedglass.core.types import Film, Knowledge
from fedglass.diffusion.denoiser import ClassModel, Denoiser, Sampler
from fedglass.diffusion.stored import Model, stored

# When a search for a start of sampling has gone far enough: beyond, it copies the flaws of the raw image.
#
# A rule sees no truth: the raw images, how far the pictures still are from them, and the starts.


@dataclass(frozen=True, eq=False)
class SearchState:
    """All that a rule is told after an epoch."""

    errors: Tensor  # (epochs so far, n): squared errors of the pictures' pixels to the raw images
    starts: Tensor  # (n, ...): where the pictures are sampled from
    raw: Tensor  # (n, c, h, w), pixels before whitening


class Stopping(Protocol):
    """Says of each image whether it is to be taken as it is now."""

    def stops(self, way: SearchState) -> Tensor:
        """Whether each image is done.  # (n,), bool"""
        ...


@dataclass(frozen=True)
class NoiseLevel:
    """Once the picture differs from the raw image by no more than the raw image's own noise [Morozov, 1966].

    What is nearer than that can only be nearer to the noise. The noise is estimated from second differences in both
    directions, which pass over smooth surfaces and straight edges [Immerkaer, 1996]; it must be white, which that of
    an enlarged image is not.
    """

    factor: float = 1.0

    def stops(self, way: SearchState) -> Tensor:
        return way.errors[-1] <= self.factor * noise_level_of(way.raw).square()


@dataclass(frozen=True)
class Flattening:
    """Once the last `over` epochs have won less than a share of all that was won: the knee of the curve.

    What is won first is the shape that sample and raw image can share; what is won slowly afterwards is copied from the
    raw image against the model. It needs no estimate of the raw image's noise, which is not white where a search
    enlarged what it found at low resolution: there `NoiseLevel` never stops.
    """

    share: float = 0.1
    over: int = 5

    def __post_init__(self) -> None:
        if self.over < 1 or self.share < 0:
            raise UsageError(f"Flattening looks over at least 1 epoch and a share of at least 0, got {self}.")

    def stops(self, way: SearchState) -> Tensor:
        if len(way.errors) <= self.over:
            return torch.zeros_like(way.errors[-1], dtype=torch.bool)
        least = way.errors.amin(0)
        before = way.errors[: -self.over].amin(0)
        return before - least <= self.share * (way.errors[0] - least)


@dataclass(frozen=True)
class WhiteStart:
    """Once the start is no longer white noise: neighbours in it agree by more standard deviations than chance explains.

    The network was trained to sample from white noise alone, and there its samples look like real images. The search
    prints the raw image into the start, for it cares for nothing else; from where that shows on, pictures are no longer
    samples and begin to blur. Products of neighbours have mean 0 and variance 1 in white noise, so that their sum over
    the root of their number says by how many standard deviations a start departs.
    """

    deviations: float = 3.0

    def __post_init__(self) -> None:
        if self.deviations <= 0:
            raise UsageError(f"A start may deviate by more than 0 standard deviations, got {self.deviations}.")

    def stops(self, way: SearchState) -> Tensor:
        return agreement(way.starts) > self.deviations


@dataclass(frozen=True)
class OracleEpoch:
    """At a given epoch: the paper's choice, made by an eye that knows what the truth looks like.

    To choose it, look at the film of a run with the largest number of epochs.
    """

    needs: ClassVar[frozenset[Fact]] = frozenset({Fact.EYE})

    epoch: int

    def __post_init__(self) -> None:
        if self.epoch < 0:
            raise UsageError(f"The epoch at which to stop must not be negative, got {self.epoch}.")

    def stops(self, way: SearchState) -> Tensor:
        return torch.full_like(way.errors[-1], len(way.errors) > self.epoch, dtype=torch.bool)


def agreement(starts: Tensor) -> Tensor:
    """By how many standard deviations neighbours agree more than those of white noise.  # (n, c, h, w) -> (n,)

    >>> float(agreement(torch.ones(1, 1, 2, 2)))
    2.0
    """
    across = starts[..., 1:] * starts[..., :-1]
    down = starts[..., 1:, :] * starts[..., :-1, :]
    products = torch.cat([across.flatten(1), down.flatten(1)], 1)
    return products.sum(1) / math.sqrt(max(1, products.shape[1]))


def noise_level_of(images: Tensor) -> Tensor:
    """The standard deviation of each image's white noise.  # (n, c, h, w) -> (n,)

    >>> flat = torch.full((1, 1, 9, 9), 0.5)
    >>> float(noise_level_of(flat))
    0.0
    """
    kernel = images.new_tensor([[1.0, -2.0, 1.0], [-2.0, 4.0, -2.0], [1.0, -2.0, 1.0]])
    planes = images.flatten(0, 1)[:, None]
    differences = torch.nn.functional.conv2d(planes, kernel[None, None]).abs().flatten(1).mean(1)
    return math.sqrt(math.pi / 2) / 6 * differences.view(len(images), -1).mean(1)


# The search of the masked diffusion enhancer: a start of sampling whose end looks like the raw image.
#
# argmin over x_T of |mu(x_T, T) - x|^2 with the noise predictions held constant [Federated Learning Nodes Can
# Reconstruct
# Peers' Image Data, Eq. 4], where mu samples without chance [Song et al., 2021, DDIM with eta 0]. In units of the
# image,
# xbar_t = x_t / sqrt(abar_t), a step of it from sigma to sigma' is xbar + (sigma' - sigma) eps(x_t). With eps taken
# for a
# constant the end is therefore affine in the start: x_0 = x_T / sqrt(abar_T) + const. Its derivative is a number, and
# an
# epoch costs one sampling, without a graph over the steps.


FRAMES = 12
"""How many pictures of the way are kept beside the last one."""
BATCH = 64
"""How many images are sampled together, so that memory does not grow with their number."""


@dataclass(frozen=True, eq=False)
class Sampling:
    """Starts and classes to pictures, in so many steps."""

    denoiser: Denoiser
    decode: Callable[[Tensor], Tensor]
    """What is denoised to images in [-1, 1]; differentiated."""
    steps: int

    @property
    def slope(self) -> float:
        """d x_0 / d x_T with the noise predictions held constant: 1 / sqrt(abar_T)."""
        return 1 / math.sqrt(float(self.denoiser.schedule.abar[-1]))

    def towards(self, starts: Tensor, labels: Tensor, raw: Tensor) -> StartFit:
        """Where starts lead, how far that is from the raw images, and which way lies the least distance."""
        parts = zip(*(torch.split(tensor, BATCH) for tensor in (starts, labels, raw)), strict=True)
        fits = [self._towards(*part) for part in parts]
        return StartFit(
            torch.cat([fit.pictures for fit in fits]),
            torch.cat([fit.errors for fit in fits]),
            torch.cat([fit.gradient for fit in fits]),
        )

    def _towards(self, starts: Tensor, labels: Tensor, raw: Tensor) -> StartFit:
        ends = Sampler(self.steps, eta=0.0).end_of(self.denoiser, starts, torch.Generator(), labels)
        with torch.enable_grad():
            ends = ends.detach().requires_grad_()
            pictures = (self.decode(ends) + 1) / 2
            errors = (pictures - raw).square().flatten(1).mean(1)
            (at_end,) = torch.autograd.grad(errors.sum(), ends)
        return StartFit(pictures.detach(), errors.detach(), self.slope * at_end)


@dataclass(frozen=True, eq=False)
class StartFit:
    """The pictures of some starts beside the raw images."""

    pictures: Tensor  # (n, c, h, w), pixels
    errors: Tensor  # (n,)
    gradient: Tensor  # as the starts: of the sum of the errors, the noise predictions held constant


@dataclass(frozen=True)
class StartSearch:
    """Adam on the starts, each image on its own until the rule takes it or the epochs are over."""

    epochs: int
    lr: float
    stop: Stopping

    def __post_init__(self) -> None:
        if self.epochs < 0 or not 0 < self.lr < math.inf:
            raise UsageError(f"mde needs epochs of at least 0 and a positive lr, got {self.epochs} and {self.lr}.")

    def run(
        self, sampling: Sampling, starts: Tensor, labels: Tensor, raw: Tensor, progress: Progress
    ) -> tuple[Tensor, Film]:
        """The pictures that were taken, and how they came about."""
        starts = starts.clone().requires_grad_()
        adam = torch.optim.Adam([starts], lr=self.lr)
        searching = torch.ones(len(raw), dtype=torch.bool, device=raw.device)
        taken, chosen = raw.clone(), torch.zeros(len(raw), dtype=torch.int64)
        way, frames = [], {}
        shown = set(torch.linspace(0, self.epochs, FRAMES).round().long().tolist())
        for epoch in range(self.epochs + 1):
            fit = sampling.towards(starts.detach()[searching], labels[searching], raw[searching])
            taken[searching], chosen[searching.cpu()] = fit.pictures, epoch
            way.append(torch.full_like(raw[:, 0, 0, 0], torch.nan).masked_scatter(searching, fit.errors))
            starts.grad = torch.zeros_like(starts)
            starts.grad[searching] = fit.gradient
            stops = self.stop.stops(SearchState(torch.stack(way), starts.detach(), raw))
            searching = searching & ~stops
            progress(epoch, self.epochs)
            over = epoch == self.epochs or not bool(searching.any())
            if over or epoch in shown:
                frames[epoch] = taken.clone()
            if over:
                break
            adam.step()
        return taken, Film(tuple(frames), torch.stack(list(frames.values())), tuple(chosen.tolist()))


GREY = 0.5


@dataclass(frozen=True)
class MaskedDiffusion:
    """A sample of `model` for the recovered class, whose start was moved until it resembles the raw image.

    [Federated Learning Nodes Can Reconstruct Peers' Image Data, Section 3.3 and Eq. 4]. The paper takes 250 steps of
    sampling, guidance 4, Adam at 0.01 and up to 100 epochs; the class is typed in and the epoch chosen by eye. Here
    the class is the recovered label and `search.stop` chooses blindly. The picture shares class and rough shape with
    the private image. Its detail is the model's: it must not be taken for the private image's own.
    """

    model: Model
    search: StartSearch
    steps: int = 20
    guidance: float = 4.0

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise UsageError(f"steps of mde must be at least 1, got {self.steps}.")
        if not 0 <= self.guidance < math.inf:
            raise UsageError(f"guidance of mde must be at least 0, got {self.guidance}.")

    def check(self, knows: Knowledge) -> None:
        """Refuse images or classes that the model does not make, without the model's work."""
        self._fitting(knows.shape, knows.classes)

    def refine(self, refinement: Refinement) -> Tensor:
        _, channels, height, width = refinement.images.shape
        if int(refinement.labels.min()) < 0:
            raise UsageError(f"Labels of mde are classes from 0 on, got {int(refinement.labels.min())}.")
        model = self._fitting((channels, height, width), int(refinement.labels.max()) + 1).to(refinement.images.device)
        raw = refinement.images.detach().nan_to_num(GREY, GREY, GREY)
        starts = torch.randn(len(raw), *model.network.shape, generator=refinement.generator).to(raw)
        sampling = Sampling(model.guided(self.guidance), model.decode, self.steps)
        taken, film = self.search.run(sampling, starts, refinement.labels, raw, refinement.progress)
        refinement.film(replace(film, frames=film.frames.clamp(0, 1)))
        return taken.clamp(0, 1)

    def untrained(self) -> MaskedDiffusion:
        """The control: the same with a network that has learned nothing."""
        return replace(self, model=self.model.untrained())

    def _fitting(self, shape: tuple[int, int, int], classes: int) -> ClassModel:
        model = ClassModel(self.model.load(), self.model.title)
        model.check(shape, classes)
        return model


@register(
    "refinements",
    "mde",
    summary="a diffusion model makes up a picture of the class that resembles",
    paper=CURIOUS_CLIENT,
)
def mde(model: str, epochs: int = 100, steps: int = 20, guidance: float = 4.0, lr: float = 0.01) -> MaskedDiffusion:
    """`model` is a folder of `fedglass train diffusion --kind transformer`; the epoch is chosen without the truth."""
    return MaskedDiffusion(stored(model), StartSearch(epochs, lr, Flattening()), steps, guidance)


@register(
    "refinements", "mde_oracle_epoch", summary="the same up to an epoch that was chosen by eye", paper=CURIOUS_CLIENT
)
def mde_oracle_epoch(
    model: str, epoch: int, steps: int = 20, guidance: float = 4.0, lr: float = 0.01
) -> MaskedDiffusion:
    """The paper's choice: somebody looks at the film and picks the epoch, knowing what the truth looks like."""
    return MaskedDiffusion(stored(model), StartSearch(epoch, lr, OracleEpoch(epoch)), steps, guidance)
