"""The search of the masked diffusion enhancer: a start of sampling whose end looks like the raw image.

argmin over x_T of |mu(x_T, T) - x|^2 with the noise predictions held constant [the curious client's paper, Eq. 4]. The
end is then affine in the start (`diffusion.deterministic`), so that an epoch costs one sampling and no graph over it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from fedglass.attack.parts import Progress
from fedglass.attack.refine.stopping import Stopping, Way
from fedglass.core.types import Film
from fedglass.diffusion.denoiser import Denoiser
from fedglass.diffusion.deterministic import end_of, slope

FRAMES = 12
"""How many pictures of the way are kept beside the last one."""
AT_ONCE = 64
"""How many images are sampled together, so that memory does not grow with their number."""


@dataclass(frozen=True, eq=False)
class Sampler:
    """Starts and classes to pictures, in so many steps."""

    denoiser: Denoiser
    decode: Callable[[Tensor], Tensor]
    """What is denoised to images in [-1, 1]; differentiated."""
    steps: int

    def towards(self, starts: Tensor, labels: Tensor, raw: Tensor) -> Towards:
        """Where starts lead, how far that is from the raw images, and which way lies the least distance."""
        parts = zip(*(each.split(AT_ONCE) for each in (starts, labels, raw)), strict=True)
        found = [self._towards(*part) for part in parts]
        return Towards(
            torch.cat([each.pictures for each in found]),
            torch.cat([each.errors for each in found]),
            torch.cat([each.gradient for each in found]),
        )

    def _towards(self, starts: Tensor, labels: Tensor, raw: Tensor) -> Towards:
        ends = end_of(self.denoiser, starts, self.steps, labels)
        with torch.enable_grad():
            ends = ends.detach().requires_grad_()
            pictures = (self.decode(ends) + 1) / 2
            errors = (pictures - raw).square().flatten(1).mean(1)
            (at_end,) = torch.autograd.grad(errors.sum(), ends)
        return Towards(pictures.detach(), errors.detach(), slope(self.denoiser.schedule) * at_end)


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

    def run(
        self, sampler: Sampler, starts: Tensor, labels: Tensor, raw: Tensor, progress: Progress
    ) -> tuple[Tensor, Film]:
        """The pictures that were taken, and how they came about."""
        starts = starts.clone().requires_grad_()
        adam = torch.optim.Adam([starts], lr=self.lr)
        searching = torch.ones(len(raw), dtype=torch.bool, device=raw.device)
        taken, chosen = raw.clone(), torch.zeros(len(raw), dtype=torch.int64)
        way, frames = [], {}
        shown = set(torch.linspace(0, self.epochs, FRAMES).round().long().tolist())
        for epoch in range(self.epochs + 1):
            here = sampler.towards(starts.detach()[searching], labels[searching], raw[searching])
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
