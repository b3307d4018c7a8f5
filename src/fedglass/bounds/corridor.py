"""The PSNR that an adversary without knowledge of images reaches under noise [Riess et al., arXiv 2402.12861].

The adversary knows the norm |x| of the picture and reads the picture itself, clipped and noised: with noise multiplier
sigma the error of each of the N pixels is N(0, sigma^2 |x|^2). It does not bound an adversary that knows what pictures
look like.
"""

from __future__ import annotations

import math

import scipy  # its parts are imported when they are first used

from fedglass.bounds.arguments import check_count, check_finite
from fedglass.core.errors import UsageError


def reach_probability(psnr: float, pixels: int, norm: float, noise_multiplier: float, peak: float = 1.0) -> float:
    """Return the probability that the adversary reaches a PSNR (in dB) or more.

    >>> round(reach_probability(31.0, pixels=3072, norm=768**0.5, noise_multiplier=0.001), 3)
    0.909
    """
    variance = _pixel_variance(pixels, norm, noise_multiplier, peak)
    if math.isnan(psnr):
        raise UsageError("psnr must be a number, got nan.")
    if variance == 0:
        return 1.0
    return float(scipy.special.gammainc(pixels / 2, pixels * 10 ** (-psnr / 10) / (2 * variance)))


def expected_psnr(pixels: int, norm: float, noise_multiplier: float, peak: float = 1.0) -> float:
    """Return the mean PSNR in dB: that of the mean error, and what the logarithm of a chi-square adds.

    >>> round(expected_psnr(pixels=3072, norm=768**0.5, noise_multiplier=0.001), 2)
    31.15
    """
    variance = _pixel_variance(pixels, norm, noise_multiplier, peak)
    if variance == 0:
        return math.inf
    return -10 / math.log(10) * (math.log(2 * variance / pixels) + float(scipy.special.digamma(pixels / 2)))


def _pixel_variance(pixels: int, norm: float, noise_multiplier: float, peak: float) -> float:
    """Return the variance of one pixel's error, in units of the square of the peak."""
    check_count("pixels", pixels)
    check_finite("norm", norm)
    check_finite("noise_multiplier", noise_multiplier)
    check_finite("peak", peak)
    if peak == 0:
        raise UsageError("peak must be above 0, got 0: it is the largest value that a pixel can have.")
    return (noise_multiplier * norm / peak) ** 2
