"""Named streams depend on seed and name alone."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from fedglass.core.rng import derive, stream

names = st.lists(st.text("ab/\\", max_size=3), min_size=1, max_size=3).map(tuple)


@given(st.integers(0, 5), names)
def test_a_seed_fits_a_signed_64_bit_integer(seed: int, name: tuple[str, ...]) -> None:
    assert 0 <= derive(seed, *name) < 2**63


@given(names, names)
def test_different_names_are_different_streams(left: tuple[str, ...], right: tuple[str, ...]) -> None:
    assert (derive(0, *left) == derive(0, *right)) == (left == right)


def test_slashes_do_not_join_names() -> None:
    assert derive(0, "a/b") != derive(0, "a", "b")
    assert derive(0, "a\\", "b") != derive(0, "a", "\\b")


def test_the_global_generator_is_left_alone() -> None:
    before = torch.random.get_rng_state()
    torch.rand(3, generator=stream(1, "x"))
    assert torch.equal(before, torch.random.get_rng_state())


def test_order_of_use_does_not_matter() -> None:
    first = torch.rand(3, generator=stream(1, "x"))
    torch.rand(5, generator=stream(1, "y"))
    assert torch.equal(first, torch.rand(3, generator=stream(1, "x")))
