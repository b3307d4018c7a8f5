"""The success of two particular adversaries: one that knows n candidates, and one that knows no images.

In the candidate game the adversary names the one of n candidates that the noisy message was made with. The other
adversary [Riess et al., arXiv 2402.12861] knows the norm |x| of the picture and reads the picture itself, clipped and
noised: with noise multiplier sigma the error of each of the N pixels is N(0, sigma^2 |x|^2). Its PSNR does not bound an
adversary that knows how pictures look.
"""

from __future__ import annotations

import math

import scipy
import torch
from torch import Tensor

from fedglass.bounds.success import check_count, check_finite
from fedglass.core.errors import UsageError

BLOCK_VALUES = 4_000_000
"""Float64 values of one block of work: 32 MB."""


def centred_gram(updates: Tensor) -> Tensor:
    """Return the inner products of all pairs of updates less their mean, in float64.  # (n, d) -> (n, n)

    Only a block of columns is held in float64 at a time. The matrices of several rounds, each divided by its noise
    variance, may be added; a part of the candidates has the part [:k, :k].
    """
    if updates.dim() != 2 or updates.shape[0] == 0:
        raise UsageError(f"The updates must have one row per candidate, got the shape {tuple(updates.shape)}.")
    count = updates.shape[0]
    gram = torch.zeros(count, count, dtype=torch.float64)
    for block in torch.split(updates, max(1, BLOCK_VALUES // count), dim=1):
        wide = block.double().cpu()
        wide = wide - wide.mean(dim=0)
        gram.addmm_(wide, wide.T)
    if not bool(torch.isfinite(gram).all()):
        raise UsageError("An update of a candidate is not finite: leave that candidate out.")
    return gram


def simulated_success(gram: Tensor, noise_std: float, draws: int, generator: torch.Generator) -> float:
    """Return how often the best adversary names the right one of n equally likely candidates.  # (n, n)

    `gram` holds the inner products of the messages of all candidates, which the adversary knows. It names the most
    likely one: with the truth i, D_ij = |u_i - u_j|^2 and w ~ N(0, G) the log-likelihood of the candidate j is, up to a
    constant, (s w_j - D_ij / 2) / s^2. For these candidates that is exact up to the sampling error of the draws; it is
    not a bound for other candidates.
    """
    check_finite("noise_std", noise_std)
    check_count("draws", draws)
    square = gram.diagonal()
    distances = (square[:, None] + square[None, :] - 2 * gram).clamp_min_(0)  # (n, n)
    root = _square_root(gram)
    rows = max(1, BLOCK_VALUES // len(gram))
    wins = 0
    for start in range(0, draws, rows):
        size = min(rows, draws - start)
        truth = torch.randint(len(gram), (size,), generator=generator)
        noise = torch.randn(size, root.shape[1], generator=generator, dtype=torch.float64) @ root.T  # (size, n)
        named = (noise_std * noise - distances[truth] / 2).argmax(dim=1)
        wins += int((named == truth).sum())
    return wins / draws


def _square_root(gram: Tensor) -> Tensor:
    """Return R with R R^T = G, without the directions that are only rounding.  # (n, n) -> (n, rank)"""
    values, vectors = torch.linalg.eigh(gram)
    significant = values > len(gram) * torch.finfo(torch.float64).eps * float(values[-1])
    root: Tensor = vectors[:, significant] * values[significant].sqrt()
    return root


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
    """Return the mean PSNR in dB: that of the mean error, plus the mean logarithm of a chi-square.

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
