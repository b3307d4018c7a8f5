"""Success of any adversary in naming a record, as a privacy guarantee bounds it."""

from __future__ import annotations

import math
from collections.abc import Iterable

from scipy.optimize import brentq
from scipy.special import log_ndtr, ndtr, ndtri


def gdp_success(base_rate: float, mu: float) -> float:
    """Return Phi(Phi^-1(base_rate) + mu)."""
    return float(ndtr(ndtri(base_rate) + mu))


def eps_delta_success(base_rate: float, eps: float, delta: float) -> float:
    """Return the bound of (eps, delta)-differential privacy."""
    grown = math.exp(min(eps, 700.0)) * base_rate + delta
    return min(1.0, grown, 1 - math.exp(-eps) * (1 - delta - base_rate))


def gdp_advantage(mu: float) -> float:
    """Return 2 Phi(mu / 2) - 1."""
    return float(2 * ndtr(mu / 2) - 1)


def combine_mu(mus: Iterable[float]) -> float:
    """Return the mu of several releases."""
    return math.hypot(*mus, 0.0)


def gdp_epsilon(mu: float, delta: float) -> float:
    """Return the epsilon of mu-GDP at a delta."""
    if mu == 0:
        return 0.0

    def excess(eps: float) -> float:
        return float(ndtr(mu / 2 - eps / mu) - math.exp(eps + log_ndtr(-mu / 2 - eps / mu)) - delta)

    high = 1.0
    while excess(high) > 0:
        high *= 2
    return float(brentq(excess, 0.0, high)) if excess(0.0) > 0 else 0.0
