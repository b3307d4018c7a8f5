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
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from fedglass.core.errors import UsageError
from fedglass.diffusion.denoiser import Denoiser, spaced

# What a picture has lost, as a linear map that works on rows and columns apart: y = A x A^T in each channel.
#
# The singular values of such a map are the products of those of A, so that a decomposition of a matrix of one side's
# length serves for a whole picture.


NOTHING = 1e-5
"""Singular values below this are rounding; the smallest that stand for data are near 0.1."""


class Degradation(Protocol):
    """The map from an image to what is known of it, along one side."""

    def matrix(self, side: int) -> Tensor:
        """A: how the image became what is known of it.  # (small, side), float64"""
        ...

    def reading(self, side: int) -> Tensor:
        """Return the measurements in a raw reconstruction of full size.  # (small, side), float64"""
        return self.matrix(side)


@dataclass(frozen=True)
class BlockMean(Degradation):
    """The mean of each block of factor x factor pixels; singular values 1 / factor."""

    factor: int = 2

    def matrix(self, side: int) -> Tensor:
        small = _reduced(side, self.factor)
        return torch.eye(small, dtype=torch.float64).repeat_interleave(self.factor, 1) / self.factor


@dataclass(frozen=True)
class Bicubic(Degradation):
    """Reduced by a bicubic filter as wide as the factor demands, as torch's `interpolate(antialias=True)` does.

    Without the wider filter a reduction by 4 would look at a quarter of the pixels only.
    """

    factor: int = 2

    def matrix(self, side: int) -> Tensor:
        small = _reduced(side, self.factor)
        unit = torch.eye(side, dtype=torch.float64)[None, None]
        return F.interpolate(unit, (small, side), mode="bicubic", antialias=True, align_corners=False)[0, 0]


@dataclass(frozen=True)
class Enlarged(Degradation):
    """Raw pictures that are bicubic enlargements of small ones, whose pixels are taken to be means of blocks.

    For attacks that search at low resolution: the small picture that was enlarged is read back exactly, where a mean
    over blocks of the enlarged one would blur it once more.
    """

    factor: int = 2

    def matrix(self, side: int) -> Tensor:
        return BlockMean(self.factor).matrix(side)

    def reading(self, side: int) -> Tensor:
        inverse: Tensor = torch.linalg.pinv(bicubic_matrix(_reduced(side, self.factor), self.factor))
        return inverse


@dataclass(frozen=True)
class Noise(Degradation):
    """Nothing is lost but for noise."""

    def matrix(self, side: int) -> Tensor:
        return torch.eye(side, dtype=torch.float64)


def bicubic_matrix(side: int, factor: int) -> Tensor:
    """Return the bicubic enlargement of a row of `side` numbers as a matrix, in double precision.

    A picture is enlarged by this matrix down the columns and across the rows.  # (side * factor, side)
    """
    unit = torch.eye(side, dtype=torch.float64)[None, None]
    return F.interpolate(unit, (side * factor, side), mode="bicubic", align_corners=False)[0, 0]


def _reduced(side: int, factor: int) -> int:
    if factor < 1 or side % factor or side < 2 * factor:
        raise UsageError(
            f"Images of side {side} cannot be reduced by the factor {factor}: the factor must divide the side, and at "
            "least two pixels must be left."
        )
    return side // factor


@dataclass(frozen=True, eq=False)
class Spectrum:
    """A degradation of pictures of one size in its spectral basis: A = U S V^T for the rows and for the columns."""

    rows: tuple[Tensor, Tensor, Tensor]  # U (a, a), S (a,), V (h, h)
    columns: tuple[Tensor, Tensor, Tensor]
    readings: tuple[Tensor, Tensor]

    @classmethod
    def of(cls, degradation: Degradation, height: int, width: int) -> Spectrum:
        """The decompositions for one size of pictures."""
        sides = (height, width)
        rows, columns = (torch.linalg.svd(degradation.matrix(side), full_matrices=True) for side in sides)
        readings = degradation.reading(height), degradation.reading(width)
        return cls((rows[0], rows[1], rows[2].T), (columns[0], columns[1], columns[2].T), readings)

    @property
    def singular(self) -> Tensor:
        """The singular value of each coordinate, zero for what is lost.  # (h, w)"""
        across, down = (F.pad(s, (0, len(v) - len(s))) for _, s, v in (self.rows, self.columns))
        values = across[:, None] * down
        return torch.where(values < NOTHING, 0.0, values)

    def read(self, raw: Tensor) -> Tensor:
        """Return the measurements in raw pictures of full size.  # (n, c, h, w) -> (n, c, a, b)"""
        return _both(self.readings[0], raw, self.readings[1].T)

    def degraded(self, images: Tensor) -> Tensor:
        """Return the measurements of these images.  # (n, c, h, w) -> (n, c, a, b)"""
        across, down = ((u * s) @ v[:, : len(s)].T for u, s, v in (self.rows, self.columns))
        return _both(across, images, down.T)

    def coordinates(self, images: Tensor) -> Tensor:
        """V^T x.  # (n, c, h, w)"""
        return _both(self.rows[2].T, images, self.columns[2])

    def images(self, coordinates: Tensor) -> Tensor:
        """V of coordinates.  # (n, c, h, w)"""
        return _both(self.rows[2], coordinates, self.columns[2].T)

    def measured(self, measurements: Tensor) -> Tensor:
        """Sigma^+ U^T y: what is known in image units, zero where nothing is.  # (n, c, a, b) -> (n, c, h, w)"""
        turned = _both(self.rows[0].T, measurements, self.columns[0])
        height, width = self.singular.shape
        room = F.pad(turned, (0, width - turned.shape[-1], 0, height - turned.shape[-2]))
        singular = self.singular.to(room)
        return torch.where(singular > 0, room / singular.clamp(min=NOTHING), 0.0)


def _both(for_rows: Tensor, images: Tensor, for_columns: Tensor) -> Tensor:
    return for_rows.to(images) @ images @ for_columns.to(images)


@dataclass(frozen=True)
class RestorationChain:
    """The options of the steps; eta and eta_B are those of the released code."""

    steps: int = 40
    """Network calls for each image."""
    eta: float = 0.85
    eta_b: float = 1.0

    @torch.no_grad()
    def restore(
        self,
        denoiser: Denoiser,
        spectrum: Spectrum,
        measurements: Tensor,
        noise: float,
        generator: torch.Generator,
        progress: Callable[[int, int], None],
    ) -> Tensor:
        """Return images in [-1, 1] from measurements of them in [-1, 1], which hold noise of that deviation."""
        ybar, eta, eta_b = spectrum.measured(measurements), self.eta, self.eta_b  # (n, c, h, w)
        singular = spectrum.singular.to(ybar)  # (h, w)
        # sigma_0 / s_i: the noise of ybar; endless where nothing is known.
        blur = torch.where(singular > 0, noise / singular, torch.inf)

        def fresh() -> Tensor:
            return torch.randn(ybar.shape, generator=generator, dtype=ybar.dtype)

        def start(sigma: float) -> Tensor:
            drawn = fresh()
            measured = ybar + (sigma**2 - blur.square()).clamp(min=0).sqrt() * drawn
            return torch.where(blur < sigma, measured, sigma * drawn)

        def moved(x: Tensor, clean: Tensor, sigma: float, after: float) -> Tensor:
            drawn, still = fresh(), (1 - eta**2) ** 0.5 * after
            unknown = clean + still * (x - clean) / sigma + eta * after * drawn
            vague = unknown  # never chosen without noise: all that is known is then known exactly
            if noise > 0:
                vague = clean + still * ((ybar - clean) * singular / noise) + eta * after * drawn
            spread = (after**2 - (eta_b * blur).square()).clamp(min=0).sqrt()
            precise = (1 - eta_b) * clean + eta_b * ybar + spread * drawn
            return torch.where(singular > 0, torch.where(blur <= after, precise, vague), unknown)

        way = spaced(denoiser.schedule, self.steps)
        sigmas = [float(denoiser.schedule.sigma[t]) for t in way]
        x = start(sigmas[0])
        for i, (t, sigma, after) in enumerate(zip(way, sigmas, [*sigmas[1:], 0.0], strict=True)):
            root_abar = float(denoiser.schedule.abar[t]) ** 0.5
            clean = spectrum.coordinates(denoiser.clean(root_abar * spectrum.images(x), t))
            x = moved(x, clean, sigma, after)
            progress(i + 1, len(way))
        return spectrum.images(x)
