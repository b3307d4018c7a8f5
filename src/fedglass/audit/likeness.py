"""Does a picture show the same in another contrast, as its negative, mirrored or moved? A person would see it.

Some networks can not tell: normalisation takes the contrast of a picture out of its gradient, and convolutions before
a mean over all places take out where it stands. An attack then finds such a picture as good as the true one, and every
metric that compares pixel by pixel calls it another.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d

ALIKE = 0.9
"""The correlation from which on pictures show the same. Other smooth pictures were seen to reach 0.7 somewhere."""
LONGEST = 64
"""Pixels of a side beyond which pictures are made smaller first: nobody needs more to see what they show."""
FLAT = 1e-6
"""The share of a picture's length that its contrast must have to be more than rounding."""
MIRRORS: tuple[tuple[int, ...], ...] = ((), (-1,), (-2,), (-2, -1))


def shown_otherwise(images: Tensor, originals: Tensor) -> list[bool]:
    """Of each original, whether any of the images shows the same.  # (m, c, h, w), (n, c, h, w) -> n entries"""
    return [value >= ALIKE for value in likeness(images, originals)]


def likeness(images: Tensor, originals: Tensor) -> list[float]:
    """Of each original, the largest absolute correlation with any of the images, mirrored and moved around the edges.

    Channels are centred apart and scaled together. A flat picture is like nothing, and so is one that is not finite.

    >>> picture = torch.rand(1, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    >>> [round(value, 3) for value in likeness(0.7 - 0.1 * picture.flip(-1).roll(3, -2), picture)]
    [1.0]
    """
    if not len(images):
        return [0.0] * len(originals)
    found = torch.cat([_spectra(images.flip(mirror)) for mirror in MIRRORS])
    # The correlation at every offset at once [the correlation theorem].
    moved = (torch.fft.ifft2((found.conj() * true).sum(dim=1)).real for true in _spectra(originals))
    return [float(each.abs().max()) for each in moved]


def _spectra(images: Tensor) -> Tensor:
    """Fourier transforms of the pictures, centred and of length 1.  # (n, c, h, w) -> (n, c, h', w')"""
    height, width = images.shape[-2:]
    pixels = images.detach().cpu().double()
    small = adaptive_avg_pool2d(pixels, (min(height, LONGEST), min(width, LONGEST)))
    centred = small - small.mean(dim=(-2, -1), keepdim=True)
    size = centred.flatten(1).norm(dim=1).view(-1, 1, 1, 1)
    sound = torch.isfinite(size) & (size > FLAT * small.flatten(1).norm(dim=1).view(-1, 1, 1, 1))
    spectra: Tensor = torch.fft.fft2(torch.where(sound, centred / size, 0.0))
    return spectra
