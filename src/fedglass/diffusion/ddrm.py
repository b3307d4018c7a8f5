"""Restoration by a diffusion model in the spectral basis of what was lost [Kawar et al., 2022].

With singular values s_i, xbar = V^T x / sqrt(abar), ybar = Sigma^+ U^T y and noise sigma_0 in y, all of images in
[-1, 1], the chain starts from ybar_i where it says more than the noise does, and from noise elsewhere (Eq. 7). Each
step asks the network for the clean image x_0 and goes to the next smaller noise sigma' (Eq. 8):

    s_i = 0:                 x_0i + sqrt(1 - eta^2) sigma' eps_i + eta sigma' n
    sigma' <  sigma_0 / s_i: x_0i + sqrt(1 - eta^2) sigma' (y_i - s_i x_0i) / sigma_0 + eta sigma' n
    sigma' >= sigma_0 / s_i: (1 - eta_B) x_0i + eta_B ybar_i + sqrt(sigma'^2 - eta_B^2 sigma_0^2 / s_i^2) n
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from fedglass.diffusion.degradation import Spectrum
from fedglass.diffusion.denoiser import Denoiser
from fedglass.diffusion.sampling import spaced


@dataclass(frozen=True)
class Chain:
    """How the steps are taken; the released code's eta and eta_B."""

    steps: int = 40
    """Network calls for each image."""
    eta: float = 0.85
    eta_b: float = 1.0

    @torch.no_grad()
    def restore(
        self,
        denoiser: Denoiser,
        spectrum: Spectrum,
        known: Tensor,
        noise: float,
        generator: torch.Generator,
        progress: Callable[[int, int], None],
    ) -> Tensor:
        """Images in [-1, 1] out of what is known of them in [-1, 1], with noise of that deviation in it."""
        step = _Step(self, spectrum, spectrum.measured(known), noise, generator)
        way = spaced(denoiser.schedule, self.steps)
        sigmas = [float(denoiser.schedule.sigma[t]) for t in way]
        x = step.start(sigmas[0])
        for i, (t, sigma, after) in enumerate(zip(way, sigmas, [*sigmas[1:], 0.0], strict=True)):
            kept = float(denoiser.schedule.abar[t]) ** 0.5
            clean = spectrum.coordinates(denoiser.clean(kept * spectrum.images(x), t))
            x = step.moved(x, clean, sigma, after)
            progress(i + 1, len(way))
        return spectrum.images(x)


@dataclass(frozen=True, eq=False)
class _Step:
    """One step for a batch of measurements, in spectral coordinates."""

    chain: Chain
    spectrum: Spectrum
    ybar: Tensor  # (n, c, h, w)
    noise: float
    generator: torch.Generator

    @property
    def singular(self) -> Tensor:
        return self.spectrum.singular.to(self.ybar)

    @property
    def blur(self) -> Tensor:
        """sigma_0 / s_i: the noise of ybar; endless where nothing is known.  # (h, w)"""
        return torch.where(self.singular > 0, self.noise / self.singular, torch.inf)

    def start(self, sigma: float) -> Tensor:
        fresh = self._fresh()
        told = self.ybar + (sigma**2 - self.blur.square()).clamp(min=0).sqrt() * fresh
        return torch.where(self.blur < sigma, told, sigma * fresh)

    def moved(self, x: Tensor, clean: Tensor, sigma: float, after: float) -> Tensor:
        eta, eta_b, fresh = self.chain.eta, self.chain.eta_b, self._fresh()
        still = (1 - eta**2) ** 0.5 * after
        unknown = clean + still * (x - clean) / sigma + eta * after * fresh
        if self.noise > 0:
            toward = (self.ybar - clean) * self.singular / self.noise
            vague = clean + still * toward + eta * after * fresh
        else:
            vague = unknown  # never chosen: without noise all that is known is known exactly
        left = (after**2 - (eta_b * self.blur).square()).clamp(min=0).sqrt()
        told = (1 - eta_b) * clean + eta_b * self.ybar + left * fresh
        known = torch.where(self.blur <= after, told, vague)
        return torch.where(self.singular > 0, known, unknown)

    def _fresh(self) -> Tensor:
        return torch.randn(self.ybar.shape, generator=self.generator, dtype=self.ybar.dtype)
