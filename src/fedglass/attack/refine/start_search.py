"""The search of the masked diffusion enhancer: a start of sampling whose end looks like the raw image.

argmin over x_T of |mu(x_T, T) - x|^2 with the noise predictions held constant [Federated Learning Nodes Can Reconstruct
Peers' Image Data, Eq. 4], where mu samples without chance [Song et al., 2021, DDIM with eta 0]. In units of the image,
xbar_t = x_t / sqrt(abar_t), a step of it from sigma to sigma' is xbar + (sigma' - sigma) eps(x_t). With eps taken for a
constant the end is therefore affine in the start: x_0 = x_T / sqrt(abar_T) + const. Its derivative is a number, and an
epoch costs one sampling, without a graph over the steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from fedglass.attack.parts import Progress
from fedglass.attack.refine.stopping import Stopping, Way
from fedglass.core.errors import UsageError
from fedglass.core.types import Film
from fedglass.diffusion.denoiser import Denoiser
from fedglass.diffusion.sampling import Sampler

FRAMES = 12
"""How many pictures of the way are kept beside the last one."""
AT_ONCE = 64
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

    def towards(self, starts: Tensor, labels: Tensor, raw: Tensor) -> Towards:
        """Where starts lead, how far that is from the raw images, and which way lies the least distance."""
        parts = zip(*(torch.split(each, AT_ONCE) for each in (starts, labels, raw)), strict=True)
        found = [self._towards(*part) for part in parts]
        return Towards(
            torch.cat([each.pictures for each in found]),
            torch.cat([each.errors for each in found]),
            torch.cat([each.gradient for each in found]),
        )

    def _towards(self, starts: Tensor, labels: Tensor, raw: Tensor) -> Towards:
        ends = Sampler(self.steps, eta=0.0).end_of(self.denoiser, starts, torch.Generator(), labels)
        with torch.enable_grad():
            ends = ends.detach().requires_grad_()
            pictures = (self.decode(ends) + 1) / 2
            errors = (pictures - raw).square().flatten(1).mean(1)
            (at_end,) = torch.autograd.grad(errors.sum(), ends)
        return Towards(pictures.detach(), errors.detach(), self.slope * at_end)


@dataclass(frozen=True, eq=False)
class Towards:
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
            here = sampling.towards(starts.detach()[searching], labels[searching], raw[searching])
            taken[searching], chosen[searching.cpu()] = here.pictures, epoch
            way.append(torch.full_like(raw[:, 0, 0, 0], torch.nan).masked_scatter(searching, here.errors))
            starts.grad = torch.zeros_like(starts)
            starts.grad[searching] = here.gradient
            stops = self.stop.stops(Way(torch.stack(way), starts.detach(), raw))
            searching = searching & ~stops
            progress(epoch, self.epochs)
            over = epoch == self.epochs or not bool(searching.any())
            if over or epoch in shown:
                frames[epoch] = taken.clone()
            if over:
                break
            adam.step()
        return taken, Film(tuple(frames), torch.stack(list(frames.values())), tuple(chosen.tolist()))
