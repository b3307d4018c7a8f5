"""Scores of a reconstruction against the truth: metrics, label errors, and energies to compare with.

A picture may show the same in another contrast, as its negative, mirrored or moved. A person would see it. Some
networks cannot tell: normalisation takes the contrast of a picture out of its gradient, and convolutions before a mean
over all places take out where it stands. An attack then finds such a picture as good as the true one, and every metric
that compares pixel by pixel calls it another. `likeness` finds it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d

from fedglass.attack.best_of import AnyAttack
from fedglass.core.thresholds import DECOY_CONTRAST, FLAT_PICTURE, SAME_PICTURE
from fedglass.core.types import Observation, Reconstruction
from fedglass.federation.truth import Truth
from fedglass.metrics.catalogue import Matching, Scores, match, score


def score_private(images: Tensor, truth: Truth, metrics: Sequence[str]) -> Scores:
    """Return the scores of the private images.

    The adversary's own take part in the matching, so that a picture of them does not count against the others.
    """
    return score(images, truth.private.images, metrics, match_private(images, truth))


def match_private(images: Tensor, truth: Truth) -> Matching:
    """Match images with the private ones, where they may show the adversary's own as well."""
    return Matching(match(images, truth.images).partner[: len(truth.private.images)])


def in_pixel_range(images: Tensor, observation: Observation) -> Tensor:
    """Clip reconstructed pixels to the range that the adversary knows; NaN stays NaN.

    Images are scored as an adversary would show them. Figures in papers are often taken without this.
    """
    return images.detach().cpu().clamp(observation.knows.low, observation.knows.high)


def grey(observation: Observation, count: int) -> Tensor:
    """Return images of the mean colour of the data: the best guess without a message.  # (count, c, h, w)"""
    knows = observation.knows
    device = next(iter(observation.update.values())).device
    pixels = knows.whitening.unwhiten(torch.zeros(count, *knows.shape, device=device))
    return pixels.clamp(knows.low, knows.high)


def decoys(images: Tensor) -> list[Tensor]:
    """Return images that are as smooth as the given ones but show something else.

    Inverted in brightness, and mirrored or shifted by half: total variation, and so a prior's share of the
    energy, stays (nearly) what it was, and what differs is the fit to the message. Those that happen to show the same
    are left out: a picture whose left half is dark, inverted and mirrored, is itself.
    """
    high, low = images.max(), images.min()
    inverted = high + low - images
    half = (images.shape[-2] // 2, images.shape[-1] // 2)
    transformed = [inverted, inverted.flip(-1), inverted.roll(half, dims=(-2, -1))]
    contrast = float((images - images.mean(dim=(-2, -1), keepdim=True)).square().mean())
    return [other for other in transformed if float((other - images).square().mean()) > DECOY_CONTRAST * contrast]


def energy_at(
    attack: AnyAttack, observation: Observation, images: Tensor, labels: Tensor, like: Reconstruction
) -> float:
    """Return the energy of given images under an attack; the operator's unknowns are those of `like`."""
    device = next(iter(observation.update.values())).device
    return attack.energy_of(observation, images.to(device), labels.to(device), like)


MOST_BLENDED = 32
"""Private images that a blend is compared with: the mean of more is nearer to theirs than to any single one, too."""


def blends_of(shown: Tensor, private: Tensor) -> list[list[int]]:
    """Return, for each reconstruction, the private images whose mean it shows; empty where it shows one of them.

    A blend is nearer to the mean of its nearest private images than to any single one. `shown[i]` belongs to image i
    and may be NaN where nothing was read.  # (n, c, h, w) both

    >>> images = torch.eye(2).view(2, 1, 1, 2)
    >>> blends_of(images.mean(0, keepdim=True).expand(2, 1, 1, 2), images), blends_of(images, images)
    ([[0, 1], [0, 1]], [[], []])
    """
    if len(private) < 2:
        return [[] for _ in shown]
    flat, true = shown.detach().cpu().double().flatten(1), private.double().flatten(1)
    distances = torch.cdist(flat, true)  # (n, n)
    order = distances.argsort(dim=1)[:, :MOST_BLENDED]
    counts = torch.arange(1, order.shape[1] + 1).view(-1, 1)
    blends = []
    for image, nearest in zip(flat, order, strict=True):
        to_means = (true[nearest].cumsum(dim=0) / counts - image).norm(dim=1)  # to the mean of the nearest 1, 2, ...
        best = int(torch.where(to_means.isnan(), torch.inf, to_means).argmin())
        blends.append(sorted(nearest[: best + 1].tolist()) if best else [])
    return blends


ROUNDING = 1e-4
"""Share of a correlation that single precision may lose."""
TOGETHER = 64
"""Originals that are compared at once."""
LONGEST_SIDE = 64
"""Pixels of a side beyond which pictures are made smaller first: they show the same."""
MIRRORS: tuple[tuple[int, ...], ...] = ((), (-1,), (-2,), (-2, -1))


def shown_transformed(images: Tensor, originals: Tensor) -> list[bool]:
    """Return for each original whether any of the images shows the same.  # (m, c, h, w), (n, c, h, w) -> n entries"""
    return [value >= SAME_PICTURE for value in likeness(images, originals, SAME_PICTURE)]


def likeness(images: Tensor, originals: Tensor, least: float = 0.0) -> list[float]:
    """Return for each original the largest absolute correlation with any image, mirrored and moved around the edges.

    Channels are centred separately and scaled together. Pictures that are flat or not finite have likeness 0. So have
    originals without an image that can reach `least`: no offset gives more than the product of the magnitudes.

    >>> picture = torch.rand(1, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    >>> [round(value, 3) for value in likeness(0.7 - 0.1 * picture.flip(-1).roll(3, -2), picture)]
    [1.0]
    """
    if not len(images):
        return [0.0] * len(originals)
    spectra = torch.cat([_spectra(images.flip(mirror)) for mirror in MIRRORS])
    spectra = spectra[spectra.abs().flatten(1).any(1)]  # without pictures that are flat or not finite
    if not len(spectra):
        return [0.0] * len(originals)
    size = [min(side, LONGEST_SIDE) for side in images.shape[-2:]]
    sizes, both = spectra.abs().flatten(1), torch.full(spectra.shape[-1:], 2.0)
    both[0] = 1.0  # the other columns of half a transform stand for two, and the last one of an even width for one
    both[-1] = 1.0 if size[1] % 2 == 0 else both[-1]
    found = []
    for some in torch.split(_spectra(originals), TOGETHER):
        limits = (some.abs() * both).flatten(1) @ sizes.T / math.prod(size)
        for true, limit in zip(some, limits, strict=True):
            near = spectra[limit >= least * (1 - ROUNDING)]
            # The correlation at every offset at once [the correlation theorem].
            found.append(
                float(torch.fft.irfft2((near.conj() * true).sum(dim=1), s=size).abs().max()) if len(near) else 0.0
            )
    return found


def _spectra(images: Tensor) -> Tensor:
    """Return half of the Fourier transforms of the pictures, centred, of length 1.  # (n, c, h, w) -> (n, c, h', k)"""
    height, width = images.shape[-2:]
    pixels = images.detach().cpu().double()
    small = adaptive_avg_pool2d(pixels, (min(height, LONGEST_SIDE), min(width, LONGEST_SIDE)))
    centred = small - small.mean(dim=(-2, -1), keepdim=True)
    size = centred.flatten(1).norm(dim=1).view(-1, 1, 1, 1)
    sound = torch.isfinite(size) & (size > FLAT_PICTURE * small.flatten(1).norm(dim=1).view(-1, 1, 1, 1))
    spectra: Tensor = torch.fft.rfft2(torch.where(sound, centred / size, 0.0).float())
    return spectra
