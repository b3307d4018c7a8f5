"""What a picture has lost, as a linear map that works on rows and columns apart: y = A x A^T in each channel.

The singular values of such a map are the products of those of A, so that a decomposition of a matrix of one side's
length serves for a whole picture.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from fedglass.core.errors import UsageError

NOTHING = 1e-5
"""Singular values below this are rounding; the smallest that stand for data are near 0.1."""


class Degradation(Protocol):
    """The map from an image to what is known of it, along one side."""

    def matrix(self, side: int) -> Tensor:
        """A: how the image became what is known of it.  # (small, side), float64"""
        ...

    def reading(self, side: int) -> Tensor:
        """What is known, out of a raw reconstruction of full size.  # (small, side), float64"""
        ...


@dataclass(frozen=True)
class BlockMean:
    """The mean of each block of factor x factor pixels; singular values 1 / factor."""

    factor: int = 2

    def matrix(self, side: int) -> Tensor:
        small = _reduced(side, self.factor)
        return torch.eye(small, dtype=torch.float64).repeat_interleave(self.factor, 1) / self.factor

    def reading(self, side: int) -> Tensor:
        return self.matrix(side)


@dataclass(frozen=True)
class Bicubic:
    """Reduced by a bicubic filter as wide as the factor demands, as torch's `interpolate(antialias=True)` does.

    Without the wider filter a reduction by 4 would look at a quarter of the pixels only.
    """

    factor: int = 2

    def matrix(self, side: int) -> Tensor:
        small = _reduced(side, self.factor)
        unit = torch.eye(side, dtype=torch.float64)[None, None]
        return F.interpolate(unit, (small, side), mode="bicubic", antialias=True, align_corners=False)[0, 0]

    def reading(self, side: int) -> Tensor:
        return self.matrix(side)


@dataclass(frozen=True)
class Enlarged:
    """Raw pictures that are bicubic enlargements of small ones, whose pixels are taken to be means of blocks.

    For attacks that search at low resolution: the small picture that was enlarged is read back exactly, where a mean
    over blocks of the enlarged one would blur it once more.
    """

    factor: int = 2

    def matrix(self, side: int) -> Tensor:
        return BlockMean(self.factor).matrix(side)

    def reading(self, side: int) -> Tensor:
        small = _reduced(side, self.factor)
        unit = torch.eye(small, dtype=torch.float64)[None, None]
        enlarge = F.interpolate(unit, (side, small), mode="bicubic", align_corners=False)[0, 0]  # (side, small)
        inverse: Tensor = torch.linalg.pinv(enlarge)
        return inverse


@dataclass(frozen=True)
class Noise:
    """Nothing is lost but for noise."""

    def matrix(self, side: int) -> Tensor:
        return torch.eye(side, dtype=torch.float64)

    def reading(self, side: int) -> Tensor:
        return self.matrix(side)


def _reduced(side: int, factor: int) -> int:
    if factor < 1 or side % factor or side < 2 * factor:
        raise UsageError(
            f"Images of side {side} can not be reduced by the factor {factor}: the factor must divide the side, and at "
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
        rows, columns = (_decomposed(degradation.matrix(side)) for side in sides)
        return cls(rows, columns, (degradation.reading(height), degradation.reading(width)))

    @property
    def singular(self) -> Tensor:
        """The singular value of each coordinate, zero for what is lost.  # (h, w)"""
        across, down = (_padded(s, len(v)) for _, s, v in (self.rows, self.columns))
        values = across[:, None] * down
        return torch.where(values < NOTHING, 0.0, values)

    def read(self, raw: Tensor) -> Tensor:
        """What is known, out of raw pictures of full size.  # (n, c, h, w) -> (n, c, a, b)"""
        return _both(self.readings[0], raw, self.readings[1].T)

    def degraded(self, images: Tensor) -> Tensor:
        """What would be known of these images.  # (n, c, h, w) -> (n, c, a, b)"""
        across, down = ((u * s) @ v[:, : len(s)].T for u, s, v in (self.rows, self.columns))
        return _both(across, images, down.T)

    def coordinates(self, images: Tensor) -> Tensor:
        """V^T x.  # (n, c, h, w)"""
        return _both(self.rows[2].T, images, self.columns[2])

    def images(self, coordinates: Tensor) -> Tensor:
        """V of coordinates.  # (n, c, h, w)"""
        return _both(self.rows[2], coordinates, self.columns[2].T)

    def measured(self, known: Tensor) -> Tensor:
        """Sigma^+ U^T y: what is known in image units, zero where nothing is.  # (n, c, a, b) -> (n, c, h, w)"""
        turned = _both(self.rows[0].T, known, self.columns[0])
        height, width = self.singular.shape
        room = F.pad(turned, (0, width - turned.shape[-1], 0, height - turned.shape[-2]))
        singular = self.singular.to(room)
        return torch.where(singular > 0, room / singular.clamp(min=NOTHING), 0.0)


def _decomposed(matrix: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    u, s, vt = torch.linalg.svd(matrix, full_matrices=True)
    return u, s, vt.T


def _padded(values: Tensor, length: int) -> Tensor:
    return F.pad(values, (0, length - len(values)))


def _both(left: Tensor, images: Tensor, right: Tensor) -> Tensor:
    return left.to(images) @ images @ right.to(images)
