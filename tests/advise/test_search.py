"""The search: it ends between the strongest value that fails and the weakest that holds, and asks nothing twice."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedglass.advise.search import formal_strength, next_strength, round_beyond, stronger_value
from fedglass.bounds.success import gdp_success
from fedglass.defend.per_example import Strength
from fedglass.verdict.gate import State

NOISE = Strength("std", 1e-4, 1.0)


def searched(
    strength: Strength, holds_from: float, enough: State, weak: State, most: int, formal: float | None = None
) -> dict[float, State]:
    """Return the verdicts of a search of a defence that protects from one position on."""
    states: dict[float, State] = {}
    while (value := next_strength(strength, states, formal, most)) is not None:
        assert value not in states, "nothing is tried twice"
        states[value] = enough if strength.position(value) >= holds_from else weak
    return states


@given(holds_from=st.floats(0.01, 0.99), kind=st.sampled_from([("clear", "leak"), ("inconclusive", "exposed")]))
def test_bisection_narrows_the_range_to_the_change_of_the_verdict(holds_from: float, kind: tuple[State, State]) -> None:
    enough, weak = kind
    states = searched(NOISE, holds_from, enough, weak, 8)
    assert len(states) <= 8
    positions = {NOISE.position(value): state for value, state in states.items()}
    weakest = min(p for p, state in positions.items() if state == enough)
    strongest = max(p for p, state in positions.items() if state == weak)
    assert strongest < weakest
    assert weakest - strongest < 1 / 2**6 + 0.01


def test_a_value_that_is_clear_is_better_than_one_without_a_leak() -> None:
    states: dict[float, State] = {1e-4: "leak", 1.0: "clear", 0.01: "inconclusive"}
    assert next_strength(NOISE, states, None, 6) == NOISE.at(0.75)


def test_the_search_ends_where_the_weakest_value_holds() -> None:
    assert len(searched(NOISE, 0.0, "clear", "leak", 6)) == 2


def test_a_defence_that_never_holds_is_tried_up_to_its_strongest_value() -> None:
    assert len(searched(NOISE, 2.0, "clear", "leak", 6)) == 6


def test_the_accountants_value_is_tried_after_the_ends() -> None:
    states = searched(NOISE, 0.5, "clear", "inconclusive", 6, formal=0.0123)
    assert list(states)[:3] == [1e-4, 1.0, 0.0123]


@given(allowed=st.floats(0.002, 0.9))
def test_the_accountants_value_meets_the_gate_and_a_weaker_one_does_not(allowed: float) -> None:
    def success(value: float) -> float:
        return gdp_success(1e-3, 0.1 / value)

    value = formal_strength(NOISE, success, allowed)
    assert value is not None
    assert success(value) <= allowed
    assert value == NOISE.at(0.0) or success(value * 0.98) > allowed


def test_without_a_bound_there_is_no_such_value() -> None:
    assert formal_strength(NOISE, lambda value: None, 0.05) is None
    assert formal_strength(NOISE, lambda value: 0.9, 0.05) is None


@pytest.mark.parametrize("most", [2, 3, 6])
def test_no_more_values_are_tried_than_asked_for(most: int) -> None:
    assert len(searched(NOISE, 0.37, "clear", "leak", most)) == most


def test_a_range_that_is_too_weak_is_not_searched() -> None:
    states: dict[float, State] = {1e-4: "leak", 1.0: "inconclusive"}
    assert next_strength(NOISE, states, None, 6, too_weak=True) is None
    assert next_strength(NOISE, states | {1.0: "clear"}, None, 6, too_weak=True) is not None


@given(allowed=st.floats(0.0015, 0.1))
def test_the_value_beyond_the_range_meets_the_gate(allowed: float) -> None:
    def success(value: float) -> float:
        return gdp_success(1e-3, 10 / value)

    value = stronger_value(NOISE, success, allowed)
    assert value is not None
    assert value > NOISE.strongest
    assert success(round_beyond(NOISE, value)) <= success(value) <= allowed
    assert success(value * 0.98) > allowed
