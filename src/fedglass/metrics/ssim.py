"""Structural similarity [Wang et al., 2004, Eq. 13]."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import conv2d

from fedglass.core.errors import DataError
from fedglass.core.registry import register
from fedglass.core.scale import Scale
from fedglass.metrics.images import demoted, greyed, pair
from fedglass.metrics.metric import Metric

WINDOW = 11
SIGMA = 1.5
WORST = -1.0
"""The lower bound, for an image that is missing or all broken."""
C1, C2 = 0.01**2, 0.03**2  # (K L)^2 with the pixel range L = 1


def ssim(reconstructed: Tensor, original: Tensor) -> Tensor:
    """Mean structural similarity of each image, in [-1, 1], 1 for equal images.  # (n, c, h, w) twice -> (n,)

    (2 mx my + C1)(2 sxy + C2) / ((mx^2 + my^2 + C1)(sx^2 + sy^2 + C2)), with local moments under an 11 x 11
    Gaussian of deviation 1.5, averaged over the positions where the window fits, then over channels (the
    paper treats grey images only). Images smaller than the window are refused: a smaller one is another
    quantity.

    >>> image = torch.linspace(0, 1, 256).view(1, 1, 16, 16)
    >>> ssim(image, image).item()
    1.0
    """
    guess, truth = pair(reconstructed, original)
    reason = why_not(tuple(truth.shape[1:]))
    if reason:
        raise DataError(reason)
    # One image at a time keeps the maps of a large batch out of memory.
    means = [_similarity(x, y).mean() for x, y in zip(greyed(guess), truth, strict=True)]
    return demoted(torch.stack(means), guess, WORST)


def why_not(shape: tuple[int, ...]) -> str | None:
    """Why images (c, h, w) have no SSIM, or None where they do."""
    if min(shape[1:]) >= WINDOW:
        return None
    return (
        f"Expected images of at least {WINDOW} x {WINDOW} pixels for SSIM, got {shape[1]} x {shape[2]}: "
        "use PSNR or RMSE for smaller ones."
    )


def _similarity(x: Tensor, y: Tensor) -> Tensor:
    """The map of local similarities.  # (c, h, w) twice -> (c, h - 10, w - 10)"""
    mx, my, xx, yy, xy = _local_mean(torch.stack([x, y, x * x, y * y, x * y]))
    vx, vy, cov = xx - mx * mx, yy - my * my, xy - mx * my
    above: Tensor = (2 * mx * my + C1) * (2 * cov + C2)
    below: Tensor = (mx * mx + my * my + C1) * (vx + vy + C2)
    return above / below


def _local_mean(maps: Tensor) -> Tensor:
    """Means under the Gaussian window, row by column.  # (k, c, h, w) -> (k, c, h - 10, w - 10)"""
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
)(Metric(ssim, Scale("SSIM", digits=2, range=(-1.0, 1.0), sure=(0.3, 0.7)), why_not))
