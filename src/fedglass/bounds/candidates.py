"""The candidate game: which of n candidates was the noisy message made with?"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import scipy  # its parts are imported when they are first used
import torch
from torch import Tensor

from fedglass.bounds.arguments import check_count, check_finite, check_size
from fedglass.bounds.success import gdp_success
from fedglass.core.errors import UsageError

BLOCK_VALUES = 4_000_000
"""Float64 values of one block of work: 32 MB."""
REACH, POINTS = 15.0, 6001
"""Standard deviations to each side and points of the quadrature: beyond 15 the density is below 1e-49, and halving the
step of 0.005 changes no digit from n = 2 to 1e9."""


@dataclass(frozen=True)
class GameSuccess:
    """How often the adversary named the right candidate."""

    mean: float
    standard_error: float


def orthonormal_success(candidates: int, mu: float) -> float:
    """Return the exact success of the best adversary: the candidates are orthogonal, mu noise deviations long.

    That is the integral of phi(t - mu) Phi(t)^(n - 1) dt.

    >>> round(orthonormal_success(10, 1.0), 4)
    0.3409
    """
    check_count("candidates", candidates)
    check_size("mu", mu)
    if math.isinf(mu):
        return 1.0
    noise, step = np.linspace(-REACH, REACH, POINTS, retstep=True)
    density = np.exp(-noise * noise / 2) / math.sqrt(2 * math.pi)
    # The trapezoidal rule: both ends vanish.
    return min(1.0, float((density * np.exp((candidates - 1) * scipy.special.log_ndtr(noise + mu))).sum() * step))


def candidate_bound(candidates: int, mu: float) -> float:
    """Return what bounds the success among n equally likely candidates, each within mu of one reference.

    >>> round(candidate_bound(10, 1.0), 4)
    0.3891
    """
    check_count("candidates", candidates)
    return gdp_success(1 / candidates, mu)


def centred_gram(updates: Tensor) -> Tensor:
    """Return the inner products of all pairs of updates less their mean, in float64.  # (n, d) -> (n, n)

    Only a block of columns is held in float64 at a time. The matrices of several parameters, or of several rounds each
    divided by its noise variance, may be added; a part of the candidates has the part [:k, :k].
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


def simulated_success(updates: Tensor, noise_std: float, draws: int, generator: torch.Generator) -> GameSuccess:
    """Return how often the best adversary names the right one of n equally likely candidates.  # (n, d)

    The adversary knows what would be sent with each candidate, and names the most likely. It is exact but for the
    error of so many draws, for these candidates: it bounds nothing for others.
    """
    return simulated_success_of_gram(centred_gram(updates), noise_std, draws, generator)


def simulated_success_of_gram(gram: Tensor, noise_std: float, draws: int, generator: torch.Generator) -> GameSuccess:
    """Return the same from the inner products alone.  # (n, n)

    With the truth i, D_ij = |u_i - u_j|^2 and w ~ N(0, G) the log-likelihood of the candidate j is, but for a
    constant, (s w_j - D_ij / 2) / s^2.
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
    return _success(wins, draws)


def _square_root(gram: Tensor) -> Tensor:
    """Return R with R R^T = G, without the directions that hold rounding alone.  # (n, n) -> (n, rank)"""
    values, vectors = torch.linalg.eigh(gram)
    kept = values > len(gram) * torch.finfo(torch.float64).eps * float(values[-1])
    found: Tensor = vectors[:, kept] * values[kept].sqrt()
    return found


def _success(wins: int, draws: int) -> GameSuccess:
    """Return the share with its standard error, of two more wins and losses so that it is never 0."""
    near = (wins + 2) / (draws + 4)
    return GameSuccess(wins / draws, math.sqrt(near * (1 - near) / draws))
