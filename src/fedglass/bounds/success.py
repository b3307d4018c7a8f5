"""Bounds: the success of an adversary that names a record, from above, and epsilon from below by canaries.

Without the message an adversary names the record with probability kappa (the base rate). With a message of trade-off
curve f it does so with probability gamma = 1 - f(kappa) at most [Balle et al., 2022; Hayes et al., 2023; Kaissis et
al., 2023].

Canaries are records that a fair coin includes and that an adversary then guesses. `epsilon_lower` holds for every
(epsilon, delta)-private mechanism and any dependence between the canaries [Steinke et al., 2023]; `guessed_epsilon`
applies it to scores. `gaussian_mu_lower` is tighter and holds where the scores of the canaries are independent, as
those of orthogonal directions under additive Gaussian noise are; otherwise it is an estimate.

`exposed_by` is the rule by which a candidate game exposes its records: one for the audit's gate and for the guard.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Literal

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray
from pydantic import BaseModel, ConfigDict, Field

from fedglass.core.errors import UsageError
from fedglass.core.thresholds import ENOUGH_CANDIDATES, FEW_RECORDS, GAME_LEVEL, RARE_RANK

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


def epsilon_ceiling(canaries: int, delta: float) -> float:
    """Return the largest epsilon that so many canaries can refute, if every guess is right.

    >>> round(epsilon_ceiling(1000, delta=1e-5), 2)
    5.78
    """
    return epsilon_lower(canaries, canaries, canaries, delta)


def guessed_epsilon(scores: ArrayLike, coins: ArrayLike, delta: float) -> float:
    """Return the largest epsilon that guesses by score refute: the highest scores were included, the lowest were not.

    Scores and coins are in the order of the canaries, so that the order of equal scores tells nothing of the coins.
    """
    ordered, coin = np.argsort(_scores("canaries'", scores), kind="stable"), np.asarray(coins, dtype=bool)
    lower = 0.0
    for guesses in _guesses(len(ordered)):
        low, high = ordered[: guesses // 2], ordered[len(ordered) - guesses // 2 :]
        right = int((~coin[low]).sum() + coin[high].sum())
        lower = max(lower, epsilon_lower(len(ordered), guesses, right, delta, ERROR_LEVEL / len(GUESSED)))
    return lower


def guessed_epsilon_ceiling(canaries: int, delta: float) -> float:
    """Return the largest epsilon that `guessed_epsilon` can show with so many canaries.

    >>> round(guessed_epsilon_ceiling(1000, delta=1e-5), 2)
    5.45
    """
    check_count("canaries", canaries)
    part = ERROR_LEVEL / len(GUESSED)
    return max(epsilon_lower(canaries, guesses, guesses, delta, part) for guesses in _guesses(canaries))


def _guesses(canaries: int) -> list[int]:
    """Return even numbers of guesses."""
    return sorted({int(share * canaries) // 2 * 2 for share in GUESSED})


def gaussian_mu_lower(included: ArrayLike, excluded: ArrayLike) -> float:
    """Return a lower limit of mu from the scores of included and of excluded canaries.

    Every threshold bounds mu by Phi^-1(1 - FPR) - Phi^-1(FNR), with the upper limits of Clopper and Pearson and
    Bonferroni over thresholds. A threshold is an order statistic of the excluded scores: its FPR has the same limit,
    and it does not depend on the included scores. The limit is 0 if nothing is shown.
    """
    inside, outside = _scores("included", included), np.sort(_scores("excluded", excluded))[::-1]
    counts = _exceedances(len(outside))
    missed = (int((inside <= outside[count]).sum()) for count in counts)
    pairs = zip(counts, missed, strict=True)
    return _largest_mu(pairs, len(inside), len(outside), ERROR_LEVEL / len(counts))


def gaussian_mu_ceiling(included: int, excluded: int) -> float:
    """Return the largest mu that `gaussian_mu_lower` can show with so many canaries, if no guess is wrong.

    >>> round(gaussian_mu_ceiling(100, 100), 2)
    3.26
    """
    check_count("included", included)
    check_count("excluded", excluded)
    return _largest_mu([(0, 0)], included, excluded, ERROR_LEVEL / len(_exceedances(excluded)))


def _largest_mu(counts: Iterable[tuple[int, int]], inside: int, outside: int, level: float) -> float:
    """Return the best of the limits of all (false positives, false negatives), each of both with half of the level."""
    shown = (
        -float(scipy.special.ndtri(clopper_pearson(above, outside, level)[1]))
        - float(scipy.special.ndtri(clopper_pearson(missed, inside, level)[1]))
        for above, missed in counts
    )
    return max(0.0, max(shown))


def clopper_pearson(hits: int, trials: int, level: float) -> tuple[float, float]:
    """Return the two-sided limits of a rate of independent trials [Clopper and Pearson, 1934].

    >>> [round(limit, 4) for limit in clopper_pearson(0, 32, 0.05)], round(clopper_pearson(8, 8, 0.05)[0], 4)
    ([0.0, 0.1089], 0.6306)
    """
    low = float(scipy.special.betaincinv(hits, trials - hits + 1, level / 2)) if hits else 0.0
    return low, float(scipy.special.betaincinv(hits + 1, trials - hits, 1 - level / 2)) if hits < trials else 1.0


def _exceedances(excluded: int) -> list[int]:
    return sorted({math.floor(share * excluded) for share in EXCEEDED})


def _scores(name: str, numbers: ArrayLike) -> NDArray[np.float64]:
    scores: NDArray[np.float64] = np.asarray(numbers, dtype=np.float64)
    if scores.ndim != 1 or scores.size == 0 or np.isnan(scores).any():
        raise UsageError(f"The {name} scores must be a list of numbers, got the shape {scores.shape}: check for nan.")
    return scores


class Game(BaseModel):
    """The candidate game: how often the message names the trained record among other examples."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    records: int
    """Played records: those whose label has too few candidates are left out."""
    candidates: int
    """Candidates per record, at least."""
    messages: int = 1
    """Messages of the audit; limits and ranks are corrected for this number of tests."""
    top1: float
    low: float
    high: float
    """Upper limit of the rate; `low` and `high` are corrected for the number of messages."""
    control: str = ""
    """Source of records that were not trained on: `held_out` or `counterfactual`; empty without a control, also where a
    training was not finite or too long to replay."""
    control_top1: float | None = None
    control_low: float | None = None
    control_high: float | None = None
    rank_p: list[float] = Field(default_factory=list)
    """For each record, (1 + candidates that score higher) / (1 + candidates)."""
    control_rank_p: list[float] = Field(default_factory=list)
    same_source: bool = True
    """False: the candidates are another kind of images, or records that were not trained on stand out as well, so the
    game decides nothing."""
    statistic: str = ""
    """`projected_cosine`, or `likelihood` under declared noise."""
    directions: int = 0
    """Number of principal directions of public gradients that were projected out."""
    public: int = 0
    """Number of public gradients that give these directions."""
    scores: list[float] = Field(default_factory=list)
    control_scores: list[float] = Field(default_factory=list)
    candidate_quantiles: list[float] = Field(default_factory=list)


def exposed_by(game: Game, allowed: float, messages: int) -> Literal["", "rate", "rank"]:
    """Return what shows that records are named beyond what is allowed and beyond the control; empty where nothing does.

    The lower limit of the rate decides from 8 records on. Of fewer records, ranks decide that chance does not explain,
    corrected for the number of messages.
    """
    if not game.same_source or not game.control or game.control_high is None:
        return ""
    if game.records >= FEW_RECORDS:
        enough = game.candidates >= ENOUGH_CANDIDATES
        return "rate" if enough and game.low > max(allowed, game.control_high) else ""
    named_records = sum(p <= RARE_RANK for p in game.rank_p)
    by_chance = binomial_tail(named_records, len(game.rank_p), RARE_RANK) > GAME_LEVEL / messages
    return "rank" if not by_chance and min(game.control_rank_p, default=0.0) > RARE_RANK else ""


def binomial_tail(hits: int, trials: int, chance: float) -> float:
    """Return how likely at least so many hits of independent trials are.

    >>> round(binomial_tail(1, 1, 0.001), 6), binomial_tail(0, 5, 0.1)
    (0.001, 1.0)
    """
    if not hits:
        return 1.0
    return sum(math.comb(trials, k) * chance**k * (1 - chance) ** (trials - k) for k in range(hits, trials + 1))
