"""Peak signal-to-noise ratio."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fedglass.core.errors import UsageError
from fedglass.core.registry import register
from fedglass.core.scale import Scale
from fedglass.metrics.metric import Metric
from fedglass.metrics.rmse import mse

CAP = 100.0
"""Decibels of identical images, and of an error of 1e-5: infinity has no place in JSON or in a mean."""


def psnr(reconstructed: Tensor, original: Tensor, peak: float = 1.0) -> Tensor:
    """10 log10(peak^2 / MSE) of each image, in dB, at most `CAP`.  # (n, c, h, w) twice -> (n,)

    Reconstructions are not clipped; use `images.clip` for that. The mean of these values is what DLFA and SME
    report, which differs from the PSNR of the mean error.

    >>> psnr(torch.zeros(1, 1, 2, 2), torch.ones(1, 1, 2, 2)).item()
    0.0
    """
    if not 0 < peak < math.inf:
        raise UsageError(f"Expected peak as a positive number, got {peak}.")
    return decibels(mse(reconstructed, original, peak), peak)


def decibels(noise: Tensor, peak: float = 1.0) -> Tensor:
    """10 log10(peak^2 / noise) of mean squared errors, at most `CAP`.

    >>> decibels(torch.tensor([0.0, 0.01]))
    tensor([100.,  20.])
    """
    # An error of zero is replaced before the logarithm, which would answer infinity.
    return (10 * torch.log10(peak**2 / noise.clamp_min(peak**2 * 1e-30))).clamp_max(CAP)


register("metrics", "psnr", summary="peak signal-to-noise ratio")(
    Metric(psnr, Scale("PSNR", "dB", 1, range=(0.0, CAP), sure=(14.0, 20.0), exact=CAP))
)
