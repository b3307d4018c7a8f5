"""Metrics of single images: RMSE, PSNR and SSIM, and how every image metric treats broken pixels.

Originals are the truth and must be sound. Reconstructions come from an optimiser that may have diverged, so they are
repaired instead of refused. A broken image (or a missing one, which is all NaN) gets the worst score, and one broken
pixel does not hide that the others leaked. Pixelwise metrics replace a pixel of NaN or infinity by the value in the
range farthest from the true one. Metrics of structure replace it by mid-grey, since the farthest values together would
draw the original's negative, and give a completely broken image a fixed score.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import conv2d

from fedglass.core.errors import DataError
from fedglass.core.metric_scale import Scale
from fedglass.core.registry import register

Shape = tuple[int, ...]
"""The shape of one image, (c, h, w)."""
RANGE_SLACK = 1e-3
"""How far an original may leave the pixel range: whitening and back costs a few units in the last place."""
MOST_RANGES = 1e3
"""Reconstructed pixels are cut off at this many pixel ranges (-60 dB), so that moments stay exact."""
MOST_DECIBELS = 100.0
"""Decibels of identical images, and of an error of 1e-5: infinity has no place in JSON or in a mean."""
WINDOW = 11
SIGMA = 1.5
WORST_SSIM = -1.0
"""The lower bound of SSIM, for an image that is missing or completely broken."""
C1, C2 = 0.01**2, 0.03**2  # (K L)^2 with the pixel range L = 1


def always(shape: Shape) -> str | None:
    """Return no reason: all images have the metric."""
    return None


@dataclass(frozen=True)
class Metric:
    """A figure for each image, its scale, and the reason why some images do not have it."""

    compute: Callable[[Tensor, Tensor], Tensor]
    """Reconstructed and original images, matched, (n, c, h, w) each, pixels in [0, 1] -> (n,)"""
    scale: Scale
    why_not: Callable[[Shape], str | None] = always
    """From the shape of one image: why there is no such figure, or None."""


def pair(reconstructed: Tensor, original: Tensor) -> tuple[Tensor, Tensor]:
    """Check both batches; return them as float64 on the CPU, broken pixels as NaN.  # (n, c, h, w) each

    >>> pair(torch.tensor([[[[0.5, torch.inf]]]]), torch.tensor([[[[0.25, 1.0]]]]))[0]
    tensor([[[[0.5000,    nan]]]], dtype=torch.float64)
    """
    truth = originals(original)
    guess = batch("reconstructed", reconstructed)
    if guess.shape != truth.shape:
        raise DataError(
            f"Expected reconstructed and original images of the same shape, got {tuple(guess.shape)} and "
            f"{tuple(truth.shape)}: match them first if their numbers differ."
        )
    sound = torch.where(torch.isfinite(guess), guess.clamp(-MOST_RANGES, MOST_RANGES), torch.nan)
    return sound, truth


def batch(name: str, images: Tensor) -> Tensor:
    """Return a float batch (n, c, h, w) as float64 on the CPU, detached from its graph."""
    if images.ndim != 4 or 0 in images.shape[1:]:
        raise DataError(f"Expected {name} images as a tensor (n, c, h, w), got shape {tuple(images.shape)}.")
    if not images.is_floating_point():
        raise DataError(
            f"Expected {name} images as floats with pixels in [0, 1], got {images.dtype}: divide bytes by 255."
        )
    return images.detach().cpu().double()


def originals(images: Tensor) -> Tensor:
    """Check a batch of true images: at least one, finite, pixels in [0, 1]."""
    truth = batch("original", images)
    if len(truth) == 0:
        raise DataError("Expected at least one original image, got none.")
    if not torch.isfinite(truth).all():
        raise DataError("Expected finite original images, got NaN or infinity: the data set is damaged.")
    low, high = truth.min().item(), truth.max().item()
    if low < -RANGE_SLACK or high > 1 + RANGE_SLACK:
        raise DataError(f"Expected original pixels in [0, 1], got [{low:.4g}, {high:.4g}]: undo the whitening first.")
    return truth


def fill_farthest(guess: Tensor, truth: Tensor) -> Tensor:
    """Replace broken pixels by the end of the range that is farther from the truth.

    >>> fill_farthest(torch.tensor([torch.nan, torch.nan, 0.5]), torch.tensor([0.25, 1.0, 0.5]))
    tensor([1.0000, 0.0000, 0.5000])
    """
    opposite = torch.where(truth < 0.5, 1.0, 0.0).to(guess)
    return torch.where(torch.isnan(guess), opposite, guess)


def fill_grey(guess: Tensor) -> Tensor:
    """Replace broken pixels by mid-grey, which holds nothing of the truth."""
    return torch.nan_to_num(guess, nan=0.5)


def with_worst(scores: Tensor, guess: Tensor, worst: float) -> Tensor:
    """Return the scores, with `worst` for images that have no sound pixel.  # (n,), (n, c, h, w) -> (n,)"""
    return torch.where(torch.isnan(guess).flatten(1).all(1), worst, scores)


def mse(reconstructed: Tensor, original: Tensor) -> Tensor:
    """Return the mean squared pixel difference of each image.  # (n, c, h, w) twice -> (n,)

    >>> mse(torch.zeros(1, 1, 2, 2), torch.full((1, 1, 2, 2), 0.5)).item()
    0.25
    """
    guess, truth = pair(reconstructed, original)
    return (fill_farthest(guess, truth) - truth).square().flatten(1).mean(1)


def rmse(reconstructed: Tensor, original: Tensor) -> Tensor:
    """Return the root mean squared pixel difference of each image, in units of the pixel range.  # -> (n,)

    >>> rmse(torch.zeros(1, 1, 2, 2), torch.full((1, 1, 2, 2), 0.5)).item()
    0.5
    """
    return torch.sqrt(mse(reconstructed, original))


register("metrics", "rmse", summary="root mean squared error")(
    Metric(rmse, Scale("RMSE", higher_leaks=False, range=(0.0, 1.0)))
)


def psnr(reconstructed: Tensor, original: Tensor) -> Tensor:
    """Return -10 log10(MSE) of each image, in dB, at most `MOST_DECIBELS`.  # (n, c, h, w) twice -> (n,)

    Reconstructions are not clipped, since published figures are computed without it. The mean of these values is what
    DLFA and SME report, which differs from the PSNR of the mean error.

    >>> psnr(torch.zeros(1, 1, 2, 2), torch.ones(1, 1, 2, 2)).item()
    0.0
    """
    return decibels(mse(reconstructed, original))


def decibels(noise: Tensor) -> Tensor:
    """Return -10 log10(noise) of mean squared errors, at most `MOST_DECIBELS`.

    >>> decibels(torch.tensor([0.0, 0.01]))
    tensor([100.,  20.])
    """
    # An error of zero is replaced before the logarithm, which would return infinity.
    return (10 * torch.log10(1 / noise.clamp_min(1e-30))).clamp_max(MOST_DECIBELS)


register("metrics", "psnr", summary="peak signal-to-noise ratio")(
    Metric(psnr, Scale("PSNR", "dB", 1, range=(0.0, MOST_DECIBELS), sure=(14.0, 20.0), exact=MOST_DECIBELS))
)


def ssim(reconstructed: Tensor, original: Tensor) -> Tensor:
    """Return the mean structural similarity of each image, in [-1, 1].  # (n, c, h, w) twice -> (n,)

    It is 1 for equal images [Wang et al., 2004, Eq. 13]. (2 mx my + C1)(2 sxy + C2) / ((mx^2 + my^2 + C1)(sx^2 + sy^2 +
    C2)), with local moments under an 11 x 11 Gaussian of deviation 1.5, averaged over the positions where the window
    fits, then over channels (the paper treats grey images only). Images smaller than the window are refused: a smaller
    one is another quantity.

    >>> image = torch.linspace(0, 1, 256).view(1, 1, 16, 16)
    >>> ssim(image, image).item()
    1.0
    """
    guess, truth = pair(reconstructed, original)
    reason = why_no_ssim(tuple(truth.shape[1:]))
    if reason:
        raise DataError(reason)
    # One image at a time keeps the maps of a large batch out of memory.
    means = [_similarity(x, y).mean() for x, y in zip(fill_grey(guess), truth, strict=True)]
    return with_worst(torch.stack(means), guess, WORST_SSIM)


def why_no_ssim(shape: tuple[int, ...]) -> str | None:
    """Return why images (c, h, w) have no SSIM, or None if they have."""
    if min(shape[1:]) >= WINDOW:
        return None
    return (
        f"Expected images of at least {WINDOW} x {WINDOW} pixels for SSIM, got {shape[1]} x {shape[2]}: "
        "use PSNR or RMSE for smaller ones."
    )


def _similarity(x: Tensor, y: Tensor) -> Tensor:
    """Return the map of local similarities.  # (c, h, w) twice -> (c, h - 10, w - 10)"""
    mx, my, xx, yy, xy = _local_mean(torch.stack([x, y, x * x, y * y, x * y]))
    vx, vy, cov = xx - mx * mx, yy - my * my, xy - mx * my
    above: Tensor = (2 * mx * my + C1) * (2 * cov + C2)
    below: Tensor = (mx * mx + my * my + C1) * (vx + vy + C2)
    return above / below


def _local_mean(maps: Tensor) -> Tensor:
    """Return the means under the Gaussian window, row by column.  # (k, c, h, w) -> (k, c, h - 10, w - 10)"""
    offsets = torch.arange(WINDOW, dtype=maps.dtype) - WINDOW // 2
    bell = torch.exp(-offsets.square() / (2 * SIGMA**2))
    bell = bell / bell.sum()
    planes = maps.flatten(0, 1)[:, None]
    smooth = conv2d(conv2d(planes, bell.view(1, 1, -1, 1)), bell.view(1, 1, 1, -1))
    return smooth.view(*maps.shape[:2], *smooth.shape[2:])


register(
    "metrics",
    "ssim",
    summary="structural similarity",
    paper=(
        "Wang, Bovik, Sheikh, Simoncelli: Image Quality Assessment: From Error Visibility to Structural Similarity, "
        "IEEE TIP 2004, https://doi.org/10.1109/TIP.2003.819861"
    ),
)(Metric(ssim, Scale("SSIM", digits=2, range=(-1.0, 1.0), sure=(0.3, 0.7)), why_no_ssim))
