"""The comparison of settings."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedglass.advise.search import DefenceChain
from fedglass.advise.tried import (
    TriedSetting,
    by_utility,
    cost_in_words,
    distance_in_words,
    has_learned,
    mean_accuracy,
    measured_leak,
    nearest_to_gate,
    pareto_front,
)
from fedglass.bounds.success import Game
from fedglass.defend.per_example import Strength
from fedglass.verdict.gate import Gate, State, Tally
from fedglass.verdict.records import Record

POINTS = st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=1, max_size=20)


def setting(state: State, accuracy: float = 0.5, certified: float | None = None) -> TriedSetting:
    chain = DefenceChain("dpsgd", (), 0, Strength("noise_multiplier", 0.1, 10.0))
    return TriedSetting(chain, 1.0, "", state, (accuracy, accuracy), (), 0.01, certified)


def test_a_name_by_luck_is_no_measured_leak() -> None:
    game = Game(records=15, candidates=999, top1=1 / 15, low=0.0, high=0.3)
    record = Record(key="a", attack="singling_out", attack_repr="", view="", round=1, client="0", repeat=0, seed=0,
                    status="done", kind="game", game=game)  # fmt: skip
    recovered = Tally("dlg", images=10, recovered=1, best=30.0, oracle=False)
    assert measured_leak([record], []) == 0.0, "the certificate beside it may be 0.105 %"
    assert measured_leak([record], [recovered]) == 0.1
    assert measured_leak([], []) is None


@given(points=POINTS)
def test_no_point_beats_the_front_and_each_other_point_is_beaten(points: list[tuple[float, float]]) -> None:
    front = pareto_front(points)
    for leak, accuracy in points:
        beaten = any(a <= leak and b >= accuracy for a, b in front)
        assert beaten
    for leak, accuracy in front:
        assert not any(a <= leak and b >= accuracy and (a, b) != (leak, accuracy) for a, b in points)


def test_only_clear_settings_are_candidates_and_the_most_accurate_comes_first() -> None:
    clear, better = setting("clear", 0.6, 0.04), setting("clear", 0.8, 0.05)
    useless = replace(better, learned=False)
    others = [setting("inconclusive", 0.9, 0.01), useless, setting("exposed", 1.0)]
    assert by_utility([clear, *others, better]) == [better, clear]


def test_the_nearest_setting_has_the_smallest_bound() -> None:
    bounded = setting("inconclusive", 0.1, 0.3)
    settings = [setting("leak", 0.9), bounded, setting("inconclusive", 0.9), setting("inconclusive", 0.9, 0.31)]
    assert nearest_to_gate(settings) == bounded
    assert nearest_to_gate([setting("leak", 0.9), setting("inconclusive", 0.2)]).state == "inconclusive"
    assert nearest_to_gate([*settings, replace(bounded, state="clear", certified=0.9)]).clear
    useless = replace(setting("clear", 0.1, 0.01), learned=False)
    assert nearest_to_gate([*settings, useless]) == bounded
    assert nearest_to_gate([useless]) == useless
    assert distance_in_words(useless, Gate()) == "meets the gate but has learned nothing"


def test_a_model_that_knows_nothing_rarely_seems_to_have_learned() -> None:
    draws = torch.Generator().manual_seed(0)
    tests = [torch.arange(200) % 4] * 3
    guessed = torch.randint(4, (1000, 3, 200), generator=draws)
    lucky = [has_learned((row == tests[0]).float().mean(1).tolist(), tests) for row in guessed]
    assert sum(lucky) / len(lucky) < 0.08


def test_the_interval_is_students() -> None:
    accuracy = mean_accuracy([0.80, 0.82, 0.84])
    assert accuracy.mean == pytest.approx(0.82)
    assert accuracy.high - accuracy.mean == pytest.approx(4.302653 * 0.02 / 3**0.5, rel=1e-5)


def test_a_defence_that_trains_better_than_no_defence_gains_accuracy() -> None:
    better = replace(setting("clear"), accuracies=(0.80, 0.84), undefended=(0.60, 0.62))
    assert cost_in_words(better).startswith("It has 21 points more accuracy than no defence (8.29 to 33.7, paired")
