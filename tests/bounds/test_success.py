"""The largest success by mu and by (eps, delta)."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedglass.bounds.success import (
    combine_mu,
    eps_delta_success,
    gdp_advantage,
    gdp_epsilon,
    gdp_success,
)
from fedglass.core.errors import UsageError

MUS = (0.5, 1.0, 2.0, 3.0, 4.0)
rates = st.floats(1e-12, 0.5)
mus = st.floats(1e-3, 20.0)


@pytest.mark.parametrize(
    ("rate", "values"),
    [
        (1e-2, (0.033899, 0.092362, 0.372081, 0.749734, 0.952901)),
        (1e-3, (0.004796, 0.018298, 0.137805, 0.464051, 0.818527)),
        (1e-4, (0.000643, 0.003274, 0.042806, 0.236065, 0.610638)),
    ],
)
def test_success_of_mu(rate: float, values: tuple[float, ...]) -> None:
    assert [gdp_success(rate, mu) for mu in MUS] == pytest.approx(values, abs=5e-7)


def test_success_of_eps_and_delta() -> None:
    found = [eps_delta_success(1e-3, eps, 1e-5) for eps in (1.0, 4.38, 8.0)]

    assert found == pytest.approx([0.00272828, 0.0798480, 0.9996649], abs=5e-8)


def test_advantage_and_epsilon_of_mu() -> None:
    assert [gdp_advantage(mu) for mu in MUS[:3]] == pytest.approx([0.197413, 0.382925, 0.682689], abs=5e-7)
    found = [gdp_epsilon(mu, 1e-5) for mu in (0.5, 1.0, 2.0, 4.0)]
    assert found == pytest.approx([1.9931, 4.3772, 9.9973, 24.3816], abs=5e-5)


@pytest.mark.parametrize(("mu", "delta"), [(1e-3, 1e-12), (0.1, 1e-300), (3.0, 0.3), (40.0, 1e-9), (1e4, 1e-5)])
def test_epsilon_in_the_tails_is_that_of_fifty_digits(mu: float, delta: float) -> None:
    eps = gdp_epsilon(mu, delta)
    with mpmath.workdps(50):
        m, e = mpmath.mpf(mu), mpmath.mpf(eps)
        spent = mpmath.ncdf(m / 2 - e / m) - mpmath.exp(e) * mpmath.ncdf(-m / 2 - e / m)
        assert float(spent / delta) == pytest.approx(1, rel=1e-5)


def test_success_in_the_tails_is_that_of_fifty_digits() -> None:
    with mpmath.workdps(50):
        # Phi^-1(1e-200) as far as a float tells it
        start = mpmath.findroot(lambda z: mpmath.ncdf(z) / mpmath.mpf("1e-200") - 1, -30.2)
        exact = float(mpmath.ncdf(start + 5))
    assert gdp_success(1e-200, 5.0) == pytest.approx(exact, rel=1e-10)
    assert gdp_success(1e-200, 5.0) > 1e-150


@given(rates, mus, mus)
def test_a_larger_mu_gives_more(rate: float, one: float, other: float) -> None:
    low, high = sorted((one, other))

    assert gdp_success(rate, low) <= gdp_success(rate, high)
    assert gdp_advantage(low) <= gdp_advantage(high)
    assert gdp_epsilon(low, 1e-5) <= gdp_epsilon(high, 1e-5)
    assert gdp_success(rate, 0.0) == pytest.approx(rate)


@given(rates, mus, st.floats(1e-15, 0.1))
def test_epsilon_and_delta_never_promise_more_than_mu(rate: float, mu: float, delta: float) -> None:
    assert gdp_success(rate, mu) <= eps_delta_success(rate, gdp_epsilon(mu, delta), delta) * (1 + 1e-9)


@pytest.mark.parametrize("mu", [0.5, 1.0, 2.0])
def test_the_best_of_all_eps_and_delta_is_mu(mu: float) -> None:
    """f of mu-GDP is the supremum of the lines of all (eps, delta) [Dong, Roth and Su, 2022, Proposition 2.11]."""
    deltas = np.geomspace(1e-8, 0.3, 2000)
    best = min(eps_delta_success(1e-3, gdp_epsilon(mu, float(delta)), float(delta)) for delta in deltas)

    assert best == pytest.approx(gdp_success(1e-3, mu), rel=1e-4)


def test_nothing_hides_without_noise_and_all_without_a_message() -> None:
    assert (gdp_success(1e-3, math.inf), gdp_advantage(math.inf), gdp_epsilon(math.inf, 1e-5)) == (1, 1, math.inf)
    assert eps_delta_success(1e-3, math.inf, 0.0) == 1
    assert eps_delta_success(1e-3, 2000.0, 0.0) == 1
    assert (gdp_epsilon(0.0, 0.0), gdp_advantage(0.0), eps_delta_success(0.25, 0.0, 0.0)) == (0, 0, 0.25)
    assert gdp_epsilon(1.0, 0.0) == math.inf
    assert gdp_epsilon(0.1, 0.5) == 0


def test_releases_add_as_squares() -> None:
    assert combine_mu([0.3] * 100) == pytest.approx(3.0)
    assert combine_mu([]) == 0
    assert combine_mu([1.0, math.inf]) == math.inf
    assert combine_mu([1e200, 1e200]) == pytest.approx(math.sqrt(2) * 1e200)


@pytest.mark.parametrize(("rate", "mu"), [(0.0, 1.0), (1.5, 1.0), (0.1, -1.0), (0.1, math.nan), (math.nan, 1.0)])
def test_what_is_no_probability_or_size_is_refused(rate: float, mu: float) -> None:
    with pytest.raises(UsageError):
        gdp_success(rate, mu)


def test_a_delta_of_one_is_refused() -> None:
    with pytest.raises(UsageError, match="delta"):
        gdp_epsilon(1.0, 1.0)
