"""Upper bounds on the success of an adversary that names a record.

Without the message an adversary names the record with probability kappa (the base rate). With a message of trade-off
curve f it does so with probability gamma = 1 - f(kappa) at most [Balle et al., 2022; Hayes et al., 2023; Kaissis et
al., 2023].
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import scipy

from fedglass.core.errors import UsageError

HUGE_MU = 1e150
"""A mu with a square that is still a float: above it epsilon is infinite."""


def check_rate(name: str, value: float) -> None:
    """Check that a probability is in (0, 1].

    >>> check_rate("base_rate", 5)
    Traceback (most recent call last):
    fedglass.core.errors.UsageError: base_rate must be in (0, 1], got 5: it is a probability, not a percentage.
    """
    if not 0 < value <= 1:
        raise UsageError(f"{name} must be in (0, 1], got {value!r}: it is a probability, not a percentage.")


def check_delta(value: float) -> None:
    """Check that delta is in [0, 1)."""
    if not 0 <= value < 1:
        raise UsageError(f"delta must be in [0, 1), got {value!r}: choose one far below 1 / records.")


def check_size(name: str, value: float) -> None:
    """Check that a distance, a noise or an epsilon is not negative; infinity is allowed."""
    if not value >= 0 or isinstance(value, bool):
        raise UsageError(f"{name} must be a number of at least 0, got {value!r}.")


def check_finite(name: str, value: float) -> None:
    """Check that a size is finite as well."""
    check_size(name, value)
    if math.isinf(value):
        raise UsageError(f"{name} must be finite, got {value!r}.")


def check_count(name: str, value: int, least: int = 1) -> None:
    """Check that a count is a whole number and large enough."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise UsageError(f"{name} must be a whole number of at least {least}, got {value!r}.")


def gdp_success(base_rate: float, mu: float) -> float:
    """Return the largest success under mu-Gaussian differential privacy: Phi(Phi^-1(kappa) + mu).

    >>> round(gdp_success(1e-3, 1.0), 6)
    0.018298
    """
    check_rate("base_rate", base_rate)
    check_size("mu", mu)
    return float(scipy.special.ndtr(scipy.special.ndtri(base_rate) + mu))


def eps_delta_success(base_rate: float, eps: float, delta: float) -> float:
    """Return the largest success under (eps, delta)-differential privacy.

    That is min(1, e^eps kappa + delta, 1 - e^-eps (1 - delta - kappa)).

    >>> round(eps_delta_success(1e-3, 1.0, 1e-5), 8)
    0.00272828
    """
    check_rate("base_rate", base_rate)
    check_size("eps", eps)
    check_delta(delta)
    few = math.exp(min(eps + math.log(base_rate), 0.0)) + delta  # e^eps kappa, at most 1
    many = 1 - math.exp(-eps) * (1 - delta - base_rate)
    return min(1.0, few, many)


def gdp_advantage(mu: float) -> float:
    """Return the largest membership advantage (true minus false positive rate): 2 Phi(mu / 2) - 1.

    >>> round(gdp_advantage(1.0), 6)
    0.382925
    """
    check_size("mu", mu)
    return float(scipy.special.erf(mu / math.sqrt(8)))


def gdp_epsilon(mu: float, delta: float) -> float:
    """Return the epsilon at delta of mu-Gaussian differential privacy [Dong, Roth and Su, 2022, Corollary 2.13].

    >>> round(gdp_epsilon(1.0, 1e-5), 4)
    4.3772
    """
    check_size("mu", mu)
    check_delta(delta)
    if mu == 0:
        return 0.0
    if mu > HUGE_MU or delta == 0:
        return math.inf

    def excess(eps: float) -> float:
        return gdp_delta(mu, eps) - delta

    if excess(0.0) <= 0:
        return 0.0
    high = max(1.0, mu * mu / 2)
    while excess(high) > 0:
        high *= 2
    return float(scipy.optimize.brentq(excess, 0.0, high, xtol=1e-12))


def gdp_delta(mu: float, eps: float) -> float:
    """Return Phi(mu/2 - eps/mu) - e^eps Phi(-mu/2 - eps/mu) from logarithms: neither term underflows alone."""
    first = float(scipy.special.log_ndtr(mu / 2 - eps / mu))
    second = eps + float(scipy.special.log_ndtr(-mu / 2 - eps / mu))
    return -math.exp(first) * math.expm1(min(0.0, second - first))


def combine_mu(mus: Iterable[float]) -> float:
    """Return the mu of several releases together, also of adaptive ones: the root of the sum of squares.

    >>> combine_mu([3.0, 4.0])
    5.0
    """
    values = tuple(mus)
    for mu in values:
        check_size("mu", mu)
    return math.hypot(*values)
