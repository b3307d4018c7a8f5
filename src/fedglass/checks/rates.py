"""The limits of a rate of first places: records and candidates are both a sample.

Candidates' scores do not depend on the record, so that all records of a label must beat the same best one. An interval
for independent trials covers the true rate in two of three cases then. Here records are drawn again, and with them the
best candidate's score: its tail is a generalised Pareto law, fitted anew to each draw of the highest tenth by
probability-weighted moments [Hosking and Wallis, 1987]. A rate of 0 or 1 never varies in such draws, so that the
interval is never narrower than that of Clopper and Pearson.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedglass.core.rng import derive

LEVEL = 0.05
"""The share of wrong limits over all messages together."""
TAIL = 0.1
"""Share of the candidates that the tail is fitted to, and at least `FEWEST` of them."""
FEWEST = 20
DRAWS, MOST_DRAWS = 800, 20_000
"""Draws at one message, and at most: the limits of many messages are rarer events."""
AT_ONCE = 400
"""Draws in memory at once."""

Numbers = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Game:
    """Scores of records, and those of the candidates that each was compared with."""

    scores: Numbers  # (r,)
    groups: NDArray[np.int64]
    """Of each record, which candidates.  # (r,)"""
    pools: Sequence[Numbers]
    """Scores of the candidates of each group."""
    candidates: NDArray[np.int64]
    """Of each record, how many it was compared with.  # (r,)"""
    better: NDArray[np.int64]
    """Of each record, how many of these scored at least as high.  # (r,)"""

    @property
    def rate(self) -> float:
        """The share of records that scored higher than all candidates."""
        return float(np.mean(self.better == 0))

    @property
    def rank_p(self) -> tuple[float, ...]:
        """Of each record, (1 + better) / (1 + candidates)."""
        return tuple(((1 + self.better) / (1 + self.candidates)).tolist())


def limits(game: Game, messages: int, seed: int) -> tuple[float, float]:
    """Return a lower and an upper limit of the rate, each at confidence 1 - 0.05 / messages.

    A verdict asks whether the lower one lies above a control's upper one: each is a statement of its own.
    """
    level = LEVEL / messages
    low, high = clopper_pearson(int((game.better == 0).sum()), len(game.better), 2 * level)
    random = np.random.default_rng(derive(seed, "rates"))
    draws = min(MOST_DRAWS, max(DRAWS, math.ceil(40 / level)))
    parts = [_drawn_rates(game, min(AT_ONCE, draws - first), random) for first in range(0, draws, AT_ONCE)]
    lower, upper = np.quantile(np.concatenate(parts), [level, 1 - level])
    return min(low, float(lower)), max(high, float(upper))


def clopper_pearson(hits: int, trials: int, level: float) -> tuple[float, float]:
    """Return the two-sided limits of a rate of independent trials.

    >>> [round(limit, 4) for limit in clopper_pearson(0, 32, 0.05)], round(clopper_pearson(8, 8, 0.05)[0], 4)
    ([0.0, 0.1089], 0.6306)
    """
    from scipy.special import betaincinv

    low = float(betaincinv(hits, trials - hits + 1, level / 2)) if hits else 0.0
    return low, float(betaincinv(hits + 1, trials - hits, 1 - level / 2)) if hits < trials else 1.0


def chance_of(hits: int, trials: int, chance: float) -> float:
    """Return how likely at least so many hits of independent trials are.

    >>> round(chance_of(1, 1, 0.001), 6), chance_of(0, 5, 0.1)
    (0.001, 1.0)
    """
    from scipy.special import betainc

    return float(betainc(hits, trials - hits + 1, chance)) if hits else 1.0


def _drawn_rates(game: Game, draws: int, random: np.random.Generator) -> Numbers:
    """Rates of records drawn again against the best of as many candidates, drawn from the fitted law.  # (draws,)"""
    count = int(game.candidates.max())
    best = np.stack([_drawn_best(pool, count, draws, random) for pool in game.pools], axis=1)  # (draws, groups)
    rows = random.integers(0, len(game.scores), (draws, len(game.scores)))
    wins = game.scores[rows] > np.take_along_axis(best, game.groups[rows], axis=1)
    rates: Numbers = wins.mean(axis=1)
    return rates


def _drawn_best(pool: Numbers, count: int, draws: int, random: np.random.Generator) -> Numbers:
    """The highest of `count` scores, several times.  # (draws,)"""
    ordered = np.sort(pool)
    size = min(max(FEWEST, round(TAIL * len(pool))), len(pool) - 1)
    threshold = ordered[-size - 1]
    above = np.sort(random.choice(ordered[-size:] - threshold, (draws, size)), axis=1)
    shape, scale = _pareto(above)
    # Of `count` scores the highest is exceeded by a share E / count, E exponential: among those above, so much.
    share = np.minimum(random.exponential(size=draws) * len(pool) / (count * size), 1.0)
    flat = np.abs(shape) < 1e-6
    curved = np.where(flat, 1.0, shape)
    reach = np.where(flat, -np.log(share), np.expm1(-curved * np.log(share)) / curved)
    best: Numbers = threshold + scale * reach
    return best


def _pareto(above: Numbers) -> tuple[Numbers, Numbers]:
    """Shape and scale by probability-weighted moments, of each row of ordered excesses.  # (draws, k)"""
    size = above.shape[1]
    first = above.mean(axis=1)
    second = (above * (1 - (np.arange(size) + 0.65) / size)).mean(axis=1)
    gap = np.maximum(first - 2 * second, 1e-12 * np.maximum(first, 1e-300))
    return 2 - first / gap, 2 * first * second / gap
