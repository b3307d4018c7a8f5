"""Schedules of the rate at the iterations that the papers name."""

from __future__ import annotations

from itertools import pairwise

import pytest

from fedglass.attack.solvers.schedules import Constant, CosineDecay, ExponentialDecay, RateSchedule, StepDecay
from fedglass.recipes.sme import PUBLISHED_STEPS


def test_the_steps_of_sme_fall_on_its_iterations() -> None:
    factors = [PUBLISHED_STEPS.factor(k, 1000) for k in range(1000)]
    drops = [k for k in range(1, 1000) if factors[k] < factors[k - 1]]
    assert drops == [374, 624, 875]
    assert factors[-1] == pytest.approx(1e-3)


@pytest.mark.parametrize(("by", "every"), [(0.995, 10), (0.997, 20)])
def test_the_decay_of_dlfa_is_continuous(by: float, every: int) -> None:
    schedule = ExponentialDecay(by, every)
    for k in (0, 1, 7, 10, 399):
        assert schedule.factor(k, 400) == pytest.approx(by ** (k / every))


@pytest.mark.parametrize(
    "schedule", [Constant(), StepDecay(), ExponentialDecay(0.9), CosineDecay(), CosineDecay(0.4, 0.1)], ids=repr
)
def test_schedules_start_at_one_and_never_rise(schedule: RateSchedule) -> None:
    factors = [schedule.factor(k, 77) for k in range(77)]
    assert factors[0] == 1.0
    assert all(0 < b <= a for a, b in pairwise(factors))


def test_half_a_cosine_ends_at_its_floor() -> None:
    schedule = CosineDecay(start=0.2, floor=0.1)
    assert schedule.factor(20, 100) == 1.0
    assert schedule.factor(60, 100) == pytest.approx(0.55)
    assert schedule.factor(100, 100) == pytest.approx(0.1)
