"""The masked diffusion enhancer: a generated picture of the right class that resembles the raw one.

It searches for a start of sampling that leads to a picture like the raw image: argmin over x_T of |mu(x_T, T) - x|^2
with the noise predictions held constant [Federated Learning Nodes Can Reconstruct Peers' Image Data, Eq. 4], where mu
samples without randomness [Song et al., 2021, DDIM with eta 0]. In units of the image, xbar_t = x_t / sqrt(abar_t), a
step of it from sigma to sigma' is xbar + (sigma' - sigma) eps(x_t). With constant eps the end is therefore affine in
the start: x_0 = x_T / sqrt(abar_T) + const. Its derivative is a number, and an epoch costs one sampling, without a
graph over the steps.

A stopping rule ends the search: beyond some point it copies the flaws of the raw image. The rule does not see the
truth, only the distances of the pictures to the raw images.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from fedglass.attack.parts import Progress, Refinement
from fedglass.core.errors import UsageError, check_at_least
from fedglass.core.facts import Fact
from fedglass.core.registry import register
from fedglass.core.text import CURIOUS_CLIENT
from fedglass.core.types import Film, Knowledge
from fedglass.diffusion.denoiser import Denoiser, sample, with_guidance
from fedglass.diffusion.networks import MaskedDiffusionTransformer, check_images
from fedglass.diffusion.stored import Model, stored

FRAMES = 12
"""Pictures of the search that are stored in addition to the last one."""
BATCH = 64
"""Images that are sampled together, so that memory does not grow with their number."""
GREY = 0.5
TRAIN = "train one with `fedglass train diffusion DATA -o DIR --kind transformer`"


@dataclass(frozen=True)
class Flattening:
    """Stop once the last `over` epochs brought less than a share of the total improvement: the knee of the curve.

    The first improvement is the shape that sample and raw image can share; the slow improvement afterwards is copied
    from the raw image against the model. The rule needs no estimate of the raw image's noise [Morozov, 1966], which is
    not white if a search enlarged a result of low resolution.
    """

    share: float = 0.1
    over: int = 5

    def __post_init__(self) -> None:
        if self.over < 1 or self.share < 0:
            raise UsageError(f"Flattening looks over at least 1 epoch and a share of at least 0, got {self}.")

    def stops(self, errors: Tensor) -> Tensor:
        """Mark the images that are done, by the squared errors of their pictures to the raw images after each epoch.

        # (epochs so far, n) -> (n,), bool
        """
        if len(errors) <= self.over:
            return torch.zeros_like(errors[-1], dtype=torch.bool)
        least = errors.amin(0)
        before = errors[: -self.over].amin(0)
        return before - least <= self.share * (errors[0] - least)


@dataclass(frozen=True)
class OracleEpoch:
    """Stop at a fixed epoch: the paper's choice, made by eye, with knowledge of the truth.

    To choose it, look at the film of a run with the largest number of epochs.
    """

    needs: ClassVar[frozenset[Fact]] = frozenset({Fact.EYE})

    epoch: int

    def __post_init__(self) -> None:
        if self.epoch < 0:
            raise UsageError(f"The epoch at which to stop must not be negative, got {self.epoch}.")

    def stops(self, errors: Tensor) -> Tensor:
        return torch.full_like(errors[-1], len(errors) > self.epoch, dtype=torch.bool)


SampleFit = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor, Tensor]]
"""Samples from starts, for classes: the pictures, their distances to raw images, and the gradient of these distances.

The gradient is that of the sum of the distances, the noise predictions held constant.
# (n, ...), (n,), (n, c, h, w) -> (n, c, h, w), pixels; (n,); as the starts"""


def sample_fit(denoiser: Denoiser, decode: Callable[[Tensor], Tensor], steps: int) -> SampleFit:
    """Return the fit for sampling in `steps` steps; `decode` maps denoised tensors to images in [-1, 1]."""
    # d x_0 / d x_T with the noise predictions held constant: 1 / sqrt(abar_T).
    slope = 1 / math.sqrt(float(denoiser.schedule.abar[-1]))

    def fit_batch(starts: Tensor, labels: Tensor, raw: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        ends = sample(denoiser, starts, steps, labels)
        with torch.enable_grad():
            ends = ends.detach().requires_grad_()
            pictures = (decode(ends) + 1) / 2
            errors = (pictures - raw).square().flatten(1).mean(1)
            (at_end,) = torch.autograd.grad(errors.sum(), ends)
        return pictures.detach(), errors.detach(), slope * at_end

    def fit(starts: Tensor, labels: Tensor, raw: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        parts = zip(*(torch.split(tensor, BATCH) for tensor in (starts, labels, raw)), strict=True)
        pictures, errors, gradients = zip(*(fit_batch(*part) for part in parts), strict=True)
        return torch.cat(pictures), torch.cat(errors), torch.cat(gradients)

    return fit


@dataclass(frozen=True)
class StartSearch:
    """Adam on the starts, each image separately until the rule stops it or the epochs are over."""

    epochs: int
    lr: float
    stop: Flattening | OracleEpoch

    def __post_init__(self) -> None:
        if self.epochs < 0 or not 0 < self.lr < math.inf:
            raise UsageError(f"mde needs epochs of at least 0 and a positive lr, got {self.epochs} and {self.lr}.")

    def run(
        self, fit: SampleFit, starts: Tensor, labels: Tensor, raw: Tensor, progress: Progress
    ) -> tuple[Tensor, Film]:
        """Return the final pictures, and a film of the search."""
        starts = starts.clone().requires_grad_()
        adam = torch.optim.Adam([starts], lr=self.lr)
        searching = torch.ones(len(raw), dtype=torch.bool, device=raw.device)
        taken, chosen = raw.clone(), torch.zeros(len(raw), dtype=torch.int64)
        errors_by_epoch, frames = [], {}
        shown = set(torch.linspace(0, self.epochs, FRAMES).round().long().tolist())
        for epoch in range(self.epochs + 1):
            pictures, errors, gradient = fit(starts.detach()[searching], labels[searching], raw[searching])
            taken[searching], chosen[searching.cpu()] = pictures, epoch
            errors_by_epoch.append(torch.full_like(raw[:, 0, 0, 0], torch.nan).masked_scatter(searching, errors))
            starts.grad = torch.zeros_like(starts)
            starts.grad[searching] = gradient
            searching = searching & ~self.stop.stops(torch.stack(errors_by_epoch))
            progress(epoch, self.epochs)
            over = epoch == self.epochs or not bool(searching.any())
            if over or epoch in shown:
                frames[epoch] = taken.clone()
            if over:
                break
            adam.step()
        return taken, Film(tuple(frames), torch.stack(list(frames.values())), tuple(chosen.tolist()))


@dataclass(frozen=True)
class MaskedDiffusion:
    """A sample of `model` for the recovered class, from a start that was moved until it resembles the raw image.

    [Federated Learning Nodes Can Reconstruct Peers' Image Data, Section 3.3 and Eq. 4]. The paper takes 250 steps of
    sampling, guidance 4, Adam at 0.01 and up to 100 epochs; the class is typed in and the epoch chosen by eye. Here
    the class is the recovered label, and `search.stop` chooses the epoch without the truth. The picture shares class
    and rough shape with the private image. Its detail comes from the model, not from the private image.
    """

    model: Model
    search: StartSearch
    steps: int = 20
    guidance: float = 4.0

    def __post_init__(self) -> None:
        check_at_least("steps of mde", self.steps, 1)
        if not 0 <= self.guidance < math.inf:
            raise UsageError(f"guidance of mde must be at least 0, got {self.guidance}.")

    def check(self, knows: Knowledge) -> None:
        """Refuse images or classes that the model does not make, without running the model."""
        self._fitting(knows.shape, knows.classes)

    def refine(self, refinement: Refinement) -> Tensor:
        _, channels, height, width = refinement.images.shape
        if int(refinement.labels.min()) < 0:
            raise UsageError(f"Labels of mde are classes from 0 on, got {int(refinement.labels.min())}.")
        denoiser, network = self._fitting((channels, height, width), int(refinement.labels.max()) + 1)
        for part in (network, denoiser.decoder):
            if part is not None:
                part.to(refinement.images.device)
        raw = refinement.images.detach().nan_to_num(GREY, GREY, GREY)
        starts = torch.randn(len(raw), *network.shape, generator=refinement.generator).to(raw)
        guided = replace(denoiser, network=with_guidance(network, network.classes, self.guidance))
        fit = sample_fit(guided, denoiser.decode, self.steps)
        taken, film = self.search.run(fit, starts, refinement.labels, raw, refinement.progress)
        refinement.film(replace(film, frames=film.frames.clamp(0, 1)))
        return taken.clamp(0, 1)

    def untrained(self) -> MaskedDiffusion:
        """Return the control: the same with an untrained network."""
        return replace(self, model=self.model.untrained())

    def _fitting(self, shape: tuple[int, int, int], classes: int) -> tuple[Denoiser, MaskedDiffusionTransformer]:
        """Return the model and its network; refuse other images than it makes, and more classes than it knows."""
        denoiser, title = self.model.load(), f"The diffusion model {self.model.title}"
        network = denoiser.network
        if not isinstance(network, MaskedDiffusionTransformer):
            raise UsageError(f"{title} takes no class: {TRAIN}.")
        made = network.shape if denoiser.decoder is None else denoiser.decoder.shape
        check_images(made, shape, f"{title} makes", TRAIN)
        if classes > network.classes:
            raise UsageError(
                f"{title} knows the classes 0 to {network.classes - 1}, labels go up to {classes - 1} here: {TRAIN}, "
                "on data with the same classes."
            )
        return denoiser, network


@register(
    "refinements",
    "mde",
    summary="a diffusion model generates a picture of the class that resembles the raw one",
    paper=CURIOUS_CLIENT,
)
def mde(model: str, epochs: int = 100, steps: int = 20, guidance: float = 4.0, lr: float = 0.01) -> MaskedDiffusion:
    """Return the enhancer with an epoch that is chosen without the truth.

    `model` is a folder of `fedglass train diffusion --kind transformer`.
    """
    return MaskedDiffusion(stored(model), StartSearch(epochs, lr, Flattening()), steps, guidance)


@register(
    "refinements", "mde_oracle_epoch", summary="the same up to an epoch that was chosen by eye", paper=CURIOUS_CLIENT
)
def mde_oracle_epoch(
    model: str, epoch: int, steps: int = 20, guidance: float = 4.0, lr: float = 0.01
) -> MaskedDiffusion:
    """Return the enhancer with the paper's choice of the epoch: by eye, on the film, with knowledge of the truth."""
    return MaskedDiffusion(stored(model), StartSearch(epoch, lr, OracleEpoch(epoch)), steps, guidance)
