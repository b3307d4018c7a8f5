"""Lower bounds on epsilon from canaries."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import binom, binomtest, norm

from fedglass.bounds import success
from fedglass.bounds.success import (
    epsilon_ceiling,
    epsilon_lower,
    gaussian_mu_ceiling,
    gaussian_mu_lower,
    gdp_epsilon,
    guess_p_value,
    guessed_epsilon,
    guessed_epsilon_ceiling,
)
from fedglass.core.errors import UsageError

DELTA = 1e-5


@pytest.mark.parametrize(
    ("counts", "epsilon", "exact"),
    [
        ((100, 100, 90), 1.0, 1.0875117e-4),
        ((1000, 1000, 700), 0.5, 1.8675559e-4),
        ((1000, 100, 95), 1.5, 1.1119161e-3),
    ],
)
def test_p_values(counts: tuple[int, int, int], epsilon: float, exact: float) -> None:
    assert guess_p_value(*counts, epsilon, DELTA) == pytest.approx(exact, rel=5e-8)


@pytest.mark.parametrize(
    ("counts", "delta", "exact"),
    [
        ((100, 100, 100), DELTA, 3.49022),
        ((1000, 1000, 900), DELTA, 2.02065),
        ((1000, 100, 98), DELTA, 2.71096),
        ((20, 20, 20), 0.0, 1.82272),
    ],
)
def test_lower_bounds(counts: tuple[int, int, int], delta: float, exact: float) -> None:
    assert epsilon_lower(*counts, delta) == pytest.approx(exact, abs=5e-6)


def test_the_ceiling_is_that_of_perfect_guesses() -> None:
    assert epsilon_ceiling(100, DELTA) == pytest.approx(3.49, abs=5e-3)
    assert epsilon_ceiling(1000, DELTA) == pytest.approx(5.78, abs=5e-3)
    assert all(epsilon_lower(100, r, r, DELTA) <= epsilon_ceiling(100, DELTA) for r in range(0, 101, 10))


@pytest.mark.parametrize(("right", "epsilon"), [(12, 0.2), (25, 1.0), (30, 2.5)])
def test_the_p_value_is_the_formula_term_by_term(right: int, epsilon: float) -> None:
    total, guesses, delta = 50, 30, 1e-3
    rate = math.exp(epsilon) / (1 + math.exp(epsilon))

    def at_least(count: int) -> float:
        return sum(float(binom.pmf(k, guesses, rate)) for k in range(max(count, 0), guesses + 1))

    most = max((at_least(right - i) - at_least(right)) / i for i in range(1, right + 1))
    exact = min(1.0, at_least(right) + 2 * total * delta * most)
    assert guess_p_value(total, guesses, right, epsilon, delta) == pytest.approx(exact, rel=1e-9)


@pytest.mark.parametrize("epsilon", [0.0, 0.7, 2.0])
def test_randomised_response_is_refuted_at_most_so_often(epsilon: float) -> None:
    """Each of 60 guesses is right with probability e^eps / (1 + e^eps): exactly epsilon, delta 0."""
    rate = math.exp(epsilon) / (1 + math.exp(epsilon))
    wrong = sum(float(binom.pmf(v, 60, rate)) for v in range(61) if epsilon_lower(60, 60, v, 0.0) > epsilon + 1e-9)

    assert 0.005 < wrong <= 0.05


def test_no_right_guess_refutes_nothing() -> None:
    assert guess_p_value(10, 10, 0, 0.0, DELTA) == 1
    assert epsilon_lower(100, 100, 50, DELTA) == 0
    assert epsilon_lower(100, 0, 0, DELTA) == 0


def test_more_right_guesses_refute_more() -> None:
    found = [epsilon_lower(100, 100, v, DELTA) for v in range(60, 101, 5)]
    assert found == sorted(found)
    assert found[-1] > found[0] > 0


@pytest.mark.parametrize("mu", [0.0, 1.0, 3.0])
def test_guesses_of_gaussian_canaries_rarely_refute_the_truth(mu: float) -> None:
    random = np.random.default_rng(1)
    true, wrong, runs = gdp_epsilon(mu, DELTA), 0, 100
    for _ in range(runs):
        coins = random.random(100) < 0.5
        wrong += guessed_epsilon(random.normal(mu * coins, 1), coins, DELTA) > true

    assert wrong <= 5


def test_perfect_guesses_reach_their_ceiling_and_opposite_ones_nothing() -> None:
    coins = np.random.default_rng(0).permutation(np.arange(200) % 2 == 0)

    assert guessed_epsilon(coins.astype(float), coins, DELTA) == guessed_epsilon_ceiling(200, DELTA)
    assert guessed_epsilon(-coins.astype(float), coins, DELTA) == 0
    assert guessed_epsilon(np.zeros(200), coins, DELTA) == 0
    assert guessed_epsilon_ceiling(200, DELTA) < epsilon_ceiling(200, DELTA)


@pytest.mark.parametrize("counts", [(10, 11, 3), (10, 5, 6), (-1, 0, 0), (10, 5, 2.5)])
def test_impossible_counts_are_refused(counts: tuple[int, int, int]) -> None:
    with pytest.raises(UsageError):
        guess_p_value(*counts, 1.0, DELTA)


def shown(mu: float, total: int, runs: int) -> list[float]:
    """The lower limits of mu in simulations with a fair coin for each canary."""
    random = np.random.default_rng(0)
    found = []
    for _ in range(runs):
        inside = int(random.binomial(total, 0.5))
        found.append(gaussian_mu_lower(random.normal(mu, 1, inside), random.normal(0, 1, total - inside)))
    return found


@pytest.mark.parametrize(
    ("mu", "total", "low", "high"),
    [(1.0, 200, 1.3, 2.8), (1.0, 1000, 2.7, 4.1), (4.0, 200, 13.7, 22.7), (4.0, 1000, 13.7, 22.7)],
)
def test_what_gaussian_canaries_show(mu: float, total: int, low: float, high: float) -> None:
    median = float(np.median(shown(mu, total, runs=100)))

    assert low < gdp_epsilon(median, DELTA) < high < gdp_epsilon(mu, DELTA)


@pytest.mark.parametrize("mu", [0.0, 1.0, 3.0])
def test_the_limit_is_rarely_wrong(mu: float) -> None:
    runs = 1000
    wrong = sum(lower > mu for lower in shown(mu, 200, runs))

    assert wrong / runs <= 0.05 + 4 * math.sqrt(0.05 * 0.95 / runs)


def test_the_limit_is_that_of_exact_confidence_intervals() -> None:
    """One threshold by hand: the largest excluded score, of which none is above."""
    excluded, included = np.arange(50.0), np.concatenate([np.full(60, 99.0), np.full(4, 3.0)])
    level = 0.05 / (2 * len(success.EXCEEDED))

    def limit(hits: int, trials: int) -> float:
        return float(binomtest(hits, trials, alternative="less").proportion_ci(1 - level).high)

    by_hand = [norm.isf(limit(count, 50)) - norm.ppf(limit(4, 64)) for count in (0, 1, 3, 8, 15)]
    assert gaussian_mu_lower(included, excluded) == pytest.approx(max(by_hand))
    assert gaussian_mu_lower(included, excluded) == pytest.approx(by_hand[0])


def test_perfect_scores_reach_the_ceiling_and_useless_ones_nothing() -> None:
    inside, outside = np.linspace(10, 11, 100), np.linspace(0, 1, 120)

    assert gaussian_mu_lower(inside, outside) == pytest.approx(gaussian_mu_ceiling(100, 120))
    assert gaussian_mu_lower(outside, inside) == 0
    assert gaussian_mu_lower(np.zeros(100), np.zeros(100)) == 0
    assert gaussian_mu_lower([1.0], [0.0]) == 0


def test_scores_that_are_none_are_refused() -> None:
    with pytest.raises(UsageError, match="included"):
        gaussian_mu_lower([], [1.0])
    with pytest.raises(UsageError, match="excluded"):
        gaussian_mu_lower([1.0], [math.nan])
