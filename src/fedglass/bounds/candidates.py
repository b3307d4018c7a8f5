"""The candidate game: which of n candidates was the noisy message made with?"""

from __future__ import annotations

import torch
from torch import Tensor

from fedglass.bounds.arguments import check_count, check_finite
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

    `gram` are the inner products of what would be sent with each candidate, which the adversary knows. It names the
    most likely: with the truth i, D_ij = |u_i - u_j|^2 and w ~ N(0, G) the log-likelihood of the candidate j is, but
    for a constant, (s w_j - D_ij / 2) / s^2. That is exact but for the error of so many draws, for these candidates:
    it bounds nothing for others.
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
    """Return R with R R^T = G, without the directions that hold rounding alone.  # (n, n) -> (n, rank)"""
    values, vectors = torch.linalg.eigh(gram)
    kept = values > len(gram) * torch.finfo(torch.float64).eps * float(values[-1])
    found: Tensor = vectors[:, kept] * values[kept].sqrt()
    return found
