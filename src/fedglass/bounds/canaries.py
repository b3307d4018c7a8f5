"""Lower bounds on epsilon from canaries, in one run of a mechanism.

Canaries are records that a fair coin includes and that an adversary then guesses. `epsilon_lower` holds for every
(epsilon, delta)-private mechanism and any dependence between the canaries [Steinke et al., 2023]; `guessed_epsilon`
applies it to scores. `gaussian_mu_lower` is tighter and holds where the scores of the canaries are independent, as
those of orthogonal directions under additive Gaussian noise are; otherwise it is an estimate.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray

from fedglass.bounds.success import check_count, check_delta, check_rate, check_size
from fedglass.core.errors import UsageError

ERROR_LEVEL = 0.05
"""The probability that a lower bound is wrong."""
HALVINGS = 60
"""Steps of the bisection: an interval below 1e3 shrinks below 1e-15."""
EXCEEDED = (0.0, 0.02, 0.07, 0.16, 0.31)
"""Shares of excluded canaries above a threshold, fixed before the scores are known: at Phi(-mu / 2) for mu = 1, 2, 3, 4
both errors are equal, and 0 serves all above. Nine thresholds showed no more (medians of 200 simulations)."""
GUESSED = (1.0, 0.3, 0.1)
"""Shares of the canaries that are guessed, fixed before the scores are known: of weak signals only the highest and the
lowest scores are worth a guess. The error level is divided among them."""


def guess_p_value(canaries: int, guesses: int, right: int, epsilon: float, delta: float) -> float:
    """Return the largest probability of so many right guesses under (epsilon, delta)-differential privacy.

    beta + 2 m delta max_i (P[Bin(r, q) >= v - i] - beta) / i, with beta = P[Bin(r, q) >= v] and
    q = e^eps / (1 + e^eps) [Steinke et al., 2023, Theorem 5.2].

    >>> f"{guess_p_value(100, 100, 90, epsilon=1.0, delta=1e-5):.4e}"
    '1.0875e-04'
    """
    for name, value in (("canaries", canaries), ("guesses", guesses), ("right", right)):
        check_count(name, value, least=0)
    if not right <= guesses <= canaries:
        raise UsageError(
            f"There are at most as many right guesses as guesses, and as many guesses as canaries, got {right}, "
            f"{guesses} and {canaries}."
        )
    check_size("epsilon", epsilon)
    check_delta(delta)
    rate = float(scipy.special.expit(epsilon))
    if right == 0:
        return 1.0
    beta = float(scipy.special.bdtrc(right - 1, guesses, rate))
    steps = np.arange(1, right + 1)
    gain = np.cumsum(_binomial(right - steps, guesses, rate)) / steps
    return min(1.0, beta + 2 * canaries * delta * float(gain.max()))


def _binomial(hits: NDArray[np.int64], trials: int, rate: float) -> NDArray[np.float64]:
    """Return the probabilities of so many hits; scipy.stats has them too, but takes ten times as long."""
    ways = scipy.special.gammaln(trials + 1) - scipy.special.gammaln([hits + 1, trials - hits + 1]).sum(axis=0)
    misses = scipy.special.xlog1py(trials - hits, -rate)
    probabilities: NDArray[np.float64] = np.exp(ways + scipy.special.xlogy(hits, rate) + misses)
    return probabilities


def epsilon_lower(canaries: int, guesses: int, right: int, delta: float, level: float = ERROR_LEVEL) -> float:
    """Return the largest epsilon that so many right guesses refute; 0 if they refute none.

    >>> round(epsilon_lower(100, 100, 100, delta=1e-5), 4)
    3.4902
    """
    check_rate("level", level)

    def refuted(epsilon: float) -> bool:
        return guess_p_value(canaries, guesses, right, epsilon, delta) <= level

    if not refuted(0.0):
        return 0.0
    low, high = 0.0, 1.0
    while refuted(high):
        low, high = high, 2 * high
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if refuted(middle) else (low, middle)
    return low


def epsilon_ceiling(canaries: int, delta: float, level: float = ERROR_LEVEL) -> float:
    """Return the largest epsilon that so many canaries can refute, if every guess is right.

    >>> round(epsilon_ceiling(1000, delta=1e-5), 2)
    5.78
    """
    return epsilon_lower(canaries, canaries, canaries, delta, level)


def guessed_epsilon(scores: ArrayLike, coins: ArrayLike, delta: float, level: float = ERROR_LEVEL) -> float:
    """Return the largest epsilon that guesses by score refute: the highest scores were included, the lowest were not.

    Scores and coins are in the order of the canaries, so that the order of equal scores tells nothing of the coins.
    """
    ordered, coin = np.argsort(_scores("canaries'", scores), kind="stable"), np.asarray(coins, dtype=bool)
    lower = 0.0
    for guesses in _guesses(len(ordered)):
        low, high = ordered[: guesses // 2], ordered[len(ordered) - guesses // 2 :]
        right = int((~coin[low]).sum() + coin[high].sum())
        lower = max(lower, epsilon_lower(len(ordered), guesses, right, delta, level / len(GUESSED)))
    return lower


def guessed_epsilon_ceiling(canaries: int, delta: float, level: float = ERROR_LEVEL) -> float:
    """Return the largest epsilon that `guessed_epsilon` can show with so many canaries.

    >>> round(guessed_epsilon_ceiling(1000, delta=1e-5), 2)
    5.45
    """
    check_count("canaries", canaries)
    part = level / len(GUESSED)
    return max(epsilon_lower(canaries, guesses, guesses, delta, part) for guesses in _guesses(canaries))


def _guesses(canaries: int) -> list[int]:
    """Return even numbers of guesses."""
    return sorted({int(share * canaries) // 2 * 2 for share in GUESSED})


def gaussian_mu_lower(included: ArrayLike, excluded: ArrayLike, level: float = ERROR_LEVEL) -> float:
    """Return a lower limit of mu from the scores of included and of excluded canaries.

    Every threshold bounds mu by Phi^-1(1 - FPR) - Phi^-1(FNR), with the upper limits of Clopper and Pearson and
    Bonferroni over thresholds. A threshold is an order statistic of the excluded scores: its FPR has the same limit,
    and it does not depend on the included scores. The limit is 0 if nothing is shown.
    """
    inside, outside = _scores("included", included), np.sort(_scores("excluded", excluded))[::-1]
    counts = _exceedances(len(outside))
    missed = (int((inside <= outside[count]).sum()) for count in counts)
    pairs = zip(counts, missed, strict=True)
    return _largest_mu(pairs, len(inside), len(outside), level / (2 * len(counts)))


def gaussian_mu_ceiling(included: int, excluded: int, level: float = ERROR_LEVEL) -> float:
    """Return the largest mu that `gaussian_mu_lower` can show with so many canaries, if no guess is wrong.

    >>> round(gaussian_mu_ceiling(100, 100), 2)
    3.26
    """
    check_count("included", included)
    check_count("excluded", excluded)
    counts = _exceedances(excluded)
    return _largest_mu([(0, 0)], included, excluded, level / (2 * len(counts)))


def _largest_mu(counts: Iterable[tuple[int, int]], inside: int, outside: int, level: float) -> float:
    """Return the best of the limits of all (false positives, false negatives)."""
    shown = (
        -float(scipy.special.ndtri(_upper_limit(above, outside, level)))
        - float(scipy.special.ndtri(_upper_limit(missed, inside, level)))
        for above, missed in counts
    )
    return max(0.0, max(shown))


def _upper_limit(hits: int, trials: int, level: float) -> float:
    """Return the one-sided upper limit of a rate [Clopper and Pearson, 1934]."""
    return 1.0 if hits >= trials else float(scipy.special.betaincinv(hits + 1, trials - hits, 1 - level))


def _exceedances(excluded: int) -> list[int]:
    return sorted({math.floor(share * excluded) for share in EXCEEDED})


def _scores(name: str, numbers: ArrayLike) -> NDArray[np.float64]:
    scores: NDArray[np.float64] = np.asarray(numbers, dtype=np.float64)
    if scores.ndim != 1 or scores.size == 0 or np.isnan(scores).any():
        raise UsageError(f"The {name} scores must be a list of numbers, got the shape {scores.shape}: check for nan.")
    return scores
