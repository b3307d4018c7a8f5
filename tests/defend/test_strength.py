"""The strengths that defences declare."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedglass.core.errors import UsageError
from fedglass.core.registry import entries, takes
from fedglass.defend.per_example import Strength

NEEDED = {"clip": 1.0, "clipping_norm": 1.0, "sample_rate": 0.5, "sensitivity": 1.0, "delta": 1e-5}
DECLARING = [entry for entry in entries("defences") if isinstance(getattr(entry.value, "strength", None), Strength)]


def test_every_built_in_defence_declares_its_strength() -> None:
    assert {entry.name for entry in entries("defences") if entry.built_in} == {e.name for e in DECLARING if e.built_in}


@pytest.mark.parametrize("entry", DECLARING, ids=lambda entry: str(entry.name))
def test_a_defence_takes_all_values_of_its_range(entry: object) -> None:
    make = entry.value  # type: ignore[attr-defined]
    others = {name: value for name, value in NEEDED.items() if takes(make, name) and name != make.strength.option}
    for position in (0.0, 0.3, 1.0):
        make(**others, **{make.strength.option: make.strength.at(position)})


STRENGTHS = [Strength("std", 1e-5, 1.0), Strength("share", 0.5, 0.999, origin=1), Strength("epsilon", 100.0, 0.1)]


@pytest.mark.parametrize("strength", STRENGTHS)
@given(position=st.floats(0, 1))
def test_a_value_is_found_at_its_position(strength: Strength, position: float) -> None:
    assert strength.position(strength.at(position)) == pytest.approx(position, abs=2e-3)
    low, high = sorted((strength.weakest, strength.strongest))
    assert low <= strength.at(position) <= high


@pytest.mark.parametrize("ends", [(0.0, 1.0), (1.0, 1.0), (-1.0, 1.0), (1.0, 0.0), (float("nan"), 1.0)])
def test_a_range_has_two_ends_on_one_side(ends: tuple[float, float]) -> None:
    with pytest.raises(UsageError, match="give two different values"):
        Strength("std", *ends)
