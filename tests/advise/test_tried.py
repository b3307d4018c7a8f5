"""The comparison of settings."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedglass.advise.tried import TriedSetting, by_utility, mean_accuracy, nearest_to_gate, pareto_front
from fedglass.verdict.gate import State

POINTS = st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=1, max_size=20)


def setting(state: State, accuracy: float = 0.5, certified: float | None = None) -> TriedSetting:
    return TriedSetting("dpsgd", "noise_multiplier", 1.0, "", state, (accuracy, accuracy), (), 0.01, certified)


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
    assert by_utility([setting("inconclusive", 0.9, 0.01), clear, setting("exposed", 1.0), better]) == [better, clear]


def test_the_nearest_setting_has_the_smallest_bound() -> None:
    bounded = setting("inconclusive", 0.1, 0.3)
    settings = [setting("leak", 0.9), bounded, setting("inconclusive", 0.9), setting("inconclusive", 0.9, 0.31)]
    assert nearest_to_gate(settings) == bounded
    assert nearest_to_gate([setting("leak", 0.9), setting("inconclusive", 0.2)]).state == "inconclusive"
    assert nearest_to_gate([*settings, replace(bounded, state="clear", certified=0.9)]).clear


def test_the_interval_is_students() -> None:
    accuracy = mean_accuracy([0.80, 0.82, 0.84])
    assert accuracy.mean == pytest.approx(0.82)
    assert accuracy.high - accuracy.mean == pytest.approx(4.302653 * 0.02 / 3**0.5, rel=1e-5)
