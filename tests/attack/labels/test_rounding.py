"""Counts made whole keep their sum, stay near, and always come to an end."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fedglass.attack.labels.counts import round_to_sum

reals = st.lists(st.floats(-20, 60, allow_nan=False), min_size=1, max_size=12).map(
    lambda values: torch.tensor(values, dtype=torch.float64)
)


def one_by_one(counts: Tensor, total: int) -> Tensor:
    """The same rule, one unit at a time."""
    whole = [max(0, int(torch.floor(c))) for c in counts]
    while sum(whole) != total:
        rest = [float(c) - w for c, w in zip(counts, whole, strict=True)]
        missing = total - sum(whole)
        # One round over the classes before a class may be chosen again.
        if missing > 0:
            for i in sorted(range(len(whole)), key=lambda i: -rest[i])[:missing]:
                whole[i] += 1
        else:
            for i in sorted((i for i, w in enumerate(whole) if w > 0), key=lambda i: rest[i])[:-missing]:
                whole[i] -= 1
    return torch.tensor(whole)


@given(reals, st.integers(0, 80))
def test_whole_non_negative_and_of_the_right_sum(counts: Tensor, total: int) -> None:
    found = round_to_sum(counts, total)
    assert found.dtype == torch.int64
    assert int(found.sum()) == total
    assert int(found.min()) >= 0


@given(reals, st.integers(0, 80))
def test_the_same_as_one_by_one(counts: Tensor, total: int) -> None:
    assert torch.equal(round_to_sum(counts, total), one_by_one(counts, total))


@given(st.lists(st.integers(0, 9), min_size=1, max_size=12))
def test_whole_counts_stay(values: list[int]) -> None:
    counts = torch.tensor(values, dtype=torch.float32)
    assert round_to_sum(counts, sum(values)).tolist() == values


@given(reals)
def test_counts_of_nearly_the_right_sum_move_by_less_than_one(counts: Tensor) -> None:
    positive = counts.abs()
    total = round(float(positive.sum()))
    assert bool(((round_to_sum(positive, total) - positive).abs() < 1.0 + 1e-9).all())


def test_absurd_counts_come_to_an_end() -> None:
    for values in ([1e30, -1e30, 5.0], [1e12, 1e12 + 7, 3.0], [-1e18] * 4, [torch.inf, 1.0]):
        found = round_to_sum(torch.tensor(values, dtype=torch.float64), 50)
        assert int(found.sum()) == 50
        assert int(found.min()) >= 0
