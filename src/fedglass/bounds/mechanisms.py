"""The success that two mechanisms allow, Laplacian noise and DP-SGD on Poisson samples, and that of two adversaries.

Laplacian noise is bounded by Rényi divergences, which add up over entries and rounds.

DP-SGD on Poisson samples gains privacy by the sampling, which the privacy-loss distribution accounts for. Each record
is in the batch of a step with probability q; the noise multiplier is sigma (noise / clip); there are T steps.
Neighbours differ in one record, absent or present. Slices of a shuffled epoch are not Poisson samples: account for them
without amplification, by `composed_mu`.

The privacy-loss distribution is dp-accounting's with "connect the dots" [Doroshenko et al., 2022], which never
understates a delta(eps). The success follows by duality, gamma(kappa) = min over eps of delta(eps) + e^eps kappa, which
holds at every eps, with the larger delta of both directions. A trade-off curve from the two directions' distributions
(riskcal 1.5.1) is not a bound: they are rounded separately, and it came out up to 30 % below the truth (q = 0.001,
sigma = 0.5, T = 10,000, its own grid of 1e-4). The package dp-accounting is optional, and is imported on first use.

Of the two adversaries, one knows n candidates and names the one that the noisy message was made with. The other [Riess
et al., arXiv 2402.12861] knows no images but the norm |x| of the picture, and reads the picture itself, clipped and
noised: with noise multiplier sigma the error of each of the N pixels is N(0, sigma^2 |x|^2). Its PSNR does not bound an
adversary that knows how pictures look.
"""

from __future__ import annotations

import importlib
import importlib.util
import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import scipy
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedglass.bounds.success import (
    check_count,
    check_delta,
    check_finite,
    check_rate,
    gdp_advantage,
    gdp_epsilon,
    gdp_success,
)
from fedglass.core.errors import UsageError

Array = NDArray[np.float64]
ORDERS: Array = np.concatenate([np.arange(1.1, 8.0, 0.1), np.geomspace(8.0, 4096.0, 96)])
"""Orders of the divergences: any of them gives a bound, and the best one is used."""
FINEST, COARSEST = 5e-6, 1e-3
"""The grid of losses if few points suffice; a finer one takes half a minute for steps that reveal next to nothing."""
PER_DEVIATION = 20
"""Grid points per standard deviation of the loss of a step: the success came out at most 5e-4 too high (relative)."""
MOST_POINTS = 200_000
"""Grid points of all losses: a coarser grid overstates the success, but takes seconds instead of minutes."""
FARTHEST = 8.0
"""Deviations of the noise that the grid has to cover: dp-accounting leaves out 1e-15."""
WEAKEST_NOISE = 0.2
"""A noise multiplier below which the distribution is not computed: its grid grows with 1 / sigma^2, and two bounds in
closed form are nearly as good."""
LOWEST_EPS = -10.0
"""Start of the search for the best eps: below it a success is 1 up to 5e-5."""
BLOCK_VALUES = 4_000_000
"""Float64 values of one block of work: 32 MB."""


def laplace_renyi(shifts: Array) -> Array:
    """Return the Rényi divergences of independent Laplace distributions shifted by `shifts` scales, at all orders.

    R_a(s) = log(a / (2a - 1) exp((a - 1) s) + (a - 1) / (2a - 1) exp(-a s)) / (a - 1) [Mironov, 2017, Table II], summed
    over the entries.  # (d,) -> (orders,)

    >>> laplace_renyi(np.zeros(3)).max() < 1e-12
    np.True_
    """
    moved = np.abs(np.asarray(shifts, dtype=np.float64))
    total = np.zeros_like(ORDERS)
    with np.errstate(over="ignore"):  # an infinite divergence is correct, and bounds nothing
        for i, order in enumerate(ORDERS):
            up = math.log(order / (2 * order - 1)) + (order - 1) * moved
            down = math.log((order - 1) / (2 * order - 1)) - order * moved
            total[i] = max(0.0, float(np.logaddexp(up, down).sum()) / (order - 1))
    return total


def renyi_success(base_rate: float, divergences: Sequence[float] | Array) -> float:
    """Return the success that such divergences allow: min over orders of (base_rate exp(R_a))^((a - 1) / a).

    By Hölder's inequality, P(S) <= (Q(S) exp(R_a(P | Q)))^((a - 1) / a) [van Erven and Harremoës, 2014].

    >>> round(renyi_success(0.001, laplace_renyi(np.zeros(5))), 4)
    0.001
    """
    exponent = (math.log(base_rate) + np.asarray(divergences)) * (ORDERS - 1) / ORDERS
    return math.exp(min(0.0, float(exponent.min())))


def composed_mu(noise_multiplier: float, steps: int) -> float:
    """Return the mu of T steps without the gain of sampling, sqrt(T) / sigma: a bound for any choice of batches.

    >>> composed_mu(noise_multiplier=2.0, steps=4)
    1.0
    """
    check_finite("noise_multiplier", noise_multiplier)
    check_count("steps", steps)
    return math.inf if noise_multiplier == 0 else math.sqrt(steps) / noise_multiplier


def poisson_success(base_rate: float, sample_rate: float, noise_multiplier: float, steps: int) -> float:
    """Return the largest success after T steps of DP-SGD on Poisson samples; needs `fedglass[pld]`."""
    check_rate("base_rate", base_rate)
    check_rate("sample_rate", sample_rate)
    mu = composed_mu(noise_multiplier, steps)
    never = (1 - sample_rate) ** steps  # the record is in no batch, and the messages are those without it
    closed_form = min(gdp_success(base_rate, mu), never * base_rate + 1 - never)
    losses = _losses(sample_rate, noise_multiplier, steps)
    return closed_form if losses is None else min(closed_form, _dual_success(losses, base_rate))


def poisson_epsilon(sample_rate: float, noise_multiplier: float, steps: int, delta: float) -> float:
    """Return the epsilon at delta after T steps of DP-SGD on Poisson samples; needs `fedglass[pld]`."""
    check_rate("sample_rate", sample_rate)
    check_delta(delta)
    closed_form = gdp_epsilon(composed_mu(noise_multiplier, steps), delta)
    losses = _losses(sample_rate, noise_multiplier, steps)
    return closed_form if losses is None else min(closed_form, float(losses.get_epsilon_for_delta(delta)))


def poisson_advantage(sample_rate: float, noise_multiplier: float, steps: int) -> float:
    """Return the largest true minus false positive rate after T steps, delta at eps = 0; needs `fedglass[pld]`."""
    check_rate("sample_rate", sample_rate)
    closed_form = min(gdp_advantage(composed_mu(noise_multiplier, steps)), 1 - (1 - sample_rate) ** steps)
    losses = _losses(sample_rate, noise_multiplier, steps)
    return closed_form if losses is None else min(closed_form, float(losses.get_delta_for_epsilon(0.0)))


def _dual_success(losses: Any, base_rate: float) -> float:
    """Return min over eps of delta(eps) + e^eps kappa, which is convex in e^eps."""

    def bound(eps: float) -> float:
        return float(losses.get_delta_for_epsilon(eps)) + math.exp(eps) * base_rate

    highest = max(0.0, -math.log(base_rate))  # beyond it e^eps kappa alone exceeds 1
    optimum = scipy.optimize.minimize_scalar(
        bound, bounds=(LOWEST_EPS, highest), method="bounded", options={"xatol": 1e-5}
    )
    return min(1.0, float(optimum.fun))


@lru_cache(maxsize=4)
def _losses(sample_rate: float, noise_multiplier: float, steps: int) -> Any:
    """Return the privacy-loss distribution of all steps; None if the noise is too weak for it."""
    if not pld_installed():
        raise UsageError(
            "The privacy of Poisson samples needs the package dp-accounting, which is not installed: "
            "pip install fedglass[pld]."
        )
    distributions = importlib.import_module("dp_accounting.pld.privacy_loss_distribution")
    if noise_multiplier < WEAKEST_NOISE:
        return None
    step = distributions.from_gaussian_mechanism(
        standard_deviation=noise_multiplier,
        sampling_prob=sample_rate,
        value_discretization_interval=_grid(sample_rate, noise_multiplier, steps),
        use_connect_dots=True,
    )
    return step.self_compose(steps)


def _grid(sample_rate: float, noise_multiplier: float, steps: int) -> float:
    """Return the distance of two losses: small relative to the spread of one step, but with few points in all."""
    deviation = sample_rate * math.sqrt(math.expm1(noise_multiplier**-2))
    mu = min(composed_mu(noise_multiplier, steps), deviation * math.sqrt(steps))
    single = math.log1p(sample_rate * math.expm1(noise_multiplier**-2 / 2 + FARTHEST / noise_multiplier))
    width = single + mu * mu / 2 + FARTHEST * mu
    return max(FINEST, width / MOST_POINTS, min(COARSEST, deviation / PER_DEVIATION))


def pld_installed() -> bool:
    """Return True if dp-accounting is installed, which the privacy of Poisson samples needs."""
    return importlib.util.find_spec("dp_accounting") is not None


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
        wide = block.cpu().double()
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


def expected_psnr(pixels: int, norm: float, noise_multiplier: float, peak: float = 1.0) -> float:
    """Return the mean PSNR in dB: that of the mean error, plus the mean logarithm of a chi-square.

    >>> round(expected_psnr(pixels=3072, norm=768**0.5, noise_multiplier=0.001), 2)
    31.15
    """
    check_count("pixels", pixels)
    for name, value in (("norm", norm), ("noise_multiplier", noise_multiplier), ("peak", peak)):
        check_finite(name, value)
    if peak == 0:
        raise UsageError("peak must be above 0, got 0: it is the largest value that a pixel can have.")
    variance = (noise_multiplier * norm / peak) ** 2  # of one pixel's error, in units of the square of the peak
    if variance == 0:
        return math.inf
    return -10 / math.log(10) * (math.log(2 * variance / pixels) + float(scipy.special.digamma(pixels / 2)))
