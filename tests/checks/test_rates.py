"""Limits of a rate of first places."""

from __future__ import annotations

import numpy as np

from fedglass.bounds.success import clopper_pearson
from fedglass.checks.candidates import GameScores, rate_limits


def _drawn(random: np.random.Generator, shift: float, records: int) -> GameScores:
    scores, pool = random.normal(shift, 1, records), random.normal(size=1000)
    better = np.array([(pool >= score).sum() for score in scores])
    return GameScores(scores, np.zeros(records, int), [pool], np.full(records, 1000), better)


def test_limits_cover_where_all_records_meet_the_same_best_candidate() -> None:
    random = np.random.default_rng(0)
    shift, trials = 3.2, 60
    fresh = random.normal(shift, 1, 4000)[:, None] > random.normal(size=(4000, 1000)).max(1, keepdims=True)
    true, above, below, outside_independent = fresh.mean(), 0, 0, 0
    for seed in range(trials):
        game = _drawn(random, shift, 100)
        low, high = rate_limits(game, 1, seed)
        above, below = above + (low > true), below + (high < true)
        low, high = clopper_pearson(int((game.better == 0).sum()), 100, 0.05)
        outside_independent += not low <= true <= high
    assert max(above, below) <= 8  # 3 are expected of 60, of each
    assert outside_independent >= 12


def test_limits_are_wider_over_many_messages() -> None:
    game = _drawn(np.random.default_rng(1), 3.5, 32)
    one, many = rate_limits(game, 1, 0), rate_limits(game, 200, 0)
    assert many[0] < one[0] < game.rate < one[1] < many[1]
