"""Label errors and recovered shares."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedglass.core.errors import DataError, UsageError
from fedglass.metrics.catalogue import label_errors, share_above

LABELS = st.lists(st.integers(0, 6), max_size=12)


def errors(a: list[int], b: list[int]) -> int:
    return label_errors(torch.tensor(a, dtype=torch.int64), torch.tensor(b, dtype=torch.int64), classes=7)


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), max_size=12))
def test_half_the_l1_distance_of_the_counts(pairs: list[tuple[int, int]]):
    a, b = [p[0] for p in pairs], [p[1] for p in pairs]
    found, true = Counter(a), Counter(b)
    assert errors(a, b) * 2 == sum(abs(found[k] - true[k]) for k in range(7))


@given(LABELS, LABELS)
def test_a_metric_on_multisets_of_any_length(a: list[int], b: list[int]):
    assert errors(a, b) == errors(b, a) == errors(sorted(a), b)
    assert (errors(a, b) == 0) == (sorted(a) == sorted(b))
    assert abs(len(a) - len(b)) <= errors(a, b) <= max(len(a), len(b))


def test_bad_labels_are_refused():
    good = torch.tensor([0, 1])
    with pytest.raises(DataError, match=r"Expected recovered labels in 0..2, got 0..3"):
        label_errors(torch.tensor([0, 3]), good, classes=3)
    with pytest.raises(DataError, match=r"Expected true labels in 0..2, got -1..0"):
        label_errors(good, torch.tensor([-1, 0]), classes=3)
    with pytest.raises(DataError, match=r"whole numbers in one dimension, got torch.float32"):
        label_errors(torch.tensor([0.5]), good, classes=3)
    with pytest.raises(DataError, match=r"got torch.int64 of shape \(1, 2\)"):
        label_errors(good[None], good, classes=3)
    with pytest.raises(UsageError, match="classes to be at least 1, got 0"):
        label_errors(good, good, classes=0)


@given(st.lists(st.floats(-50, 100), min_size=1, max_size=20), st.floats(-50, 100))
def test_shares_split_the_values(values: list[float], threshold: float):
    equal = values.count(threshold) / len(values)
    below = share_above([-v for v in values], -threshold)
    assert share_above(values, threshold) + below + equal == pytest.approx(1)


def test_nan_is_not_recovered_and_nothing_has_no_share():
    assert share_above([float("nan"), 30.0], 20.0) == 0.5
    with pytest.raises(DataError, match="at least one value"):
        share_above([], 20.0)
