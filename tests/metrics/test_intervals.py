"""Bootstrap intervals: deterministic, honest about one unit and clusters, with the stated coverage."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from fedglass.core.errors import DataError, UsageError
from fedglass.core.rng import stream
from fedglass.metrics import intervals
from fedglass.metrics.intervals import Interval, bootstrap_mean, standard_error

VALUES = st.lists(st.floats(-100, 100), min_size=2, max_size=12)


def normal(n: int, *name: str | int) -> list[float]:
    return torch.randn(n, generator=stream(5, *name), dtype=torch.float64).tolist()


@given(VALUES, st.floats(0.5, 0.99))
@settings(deadline=None, max_examples=30)
def test_bounds_hold_the_values_and_grow_with_the_level(values: list[float], level: float):
    found = bootstrap_mean(values, level=level, resamples=200)
    assert found.mean == pytest.approx(np.mean(values), abs=1e-9)
    assert min(values) - 1e-9 <= found.low <= found.high <= max(values) + 1e-9
    wider = bootstrap_mean(values, level=0.995, resamples=200)
    assert wider.low <= found.low <= found.high <= wider.high


@given(VALUES, st.floats(0.1, 10), st.floats(-10, 10))
@settings(deadline=None, max_examples=30)
def test_scale_and_shift_carry_over(values: list[float], scale: float, shift: float):
    a = bootstrap_mean(values, resamples=200)
    b = bootstrap_mean([scale * v + shift for v in values], resamples=200)
    assert (b.low, b.high) == pytest.approx((scale * a.low + shift, scale * a.high + shift), abs=1e-6)


def test_agrees_with_scipy():
    values = normal(40, "scipy")
    found = bootstrap_mean(values, resamples=20000)
    rng = np.random.default_rng(0)
    slow = stats.bootstrap((values,), np.mean, n_resamples=20000, method="percentile", rng=rng)
    width = slow.confidence_interval.high - slow.confidence_interval.low
    assert found.low == pytest.approx(slow.confidence_interval.low, abs=0.03 * width)
    assert found.high == pytest.approx(slow.confidence_interval.high, abs=0.03 * width)


def test_same_seed_same_interval_whatever_the_global_state():
    values = normal(20, "seed")
    first = bootstrap_mean(values, seed=1)
    with torch.random.fork_rng():
        torch.manual_seed(99)
        state = torch.get_rng_state()
        assert bootstrap_mean(values, seed=1) == first
        assert torch.equal(torch.get_rng_state(), state)
    assert bootstrap_mean(values, seed=2) != first


def test_covers_the_true_mean_about_as_often_as_it_says():
    hits = 0
    for trial in range(300):
        found = bootstrap_mean(normal(30, "coverage", trial), resamples=400)
        hits += found.low <= 0 <= found.high
    assert 0.89 <= hits / 300 <= 0.98


def test_clustered_intervals_cover_where_plain_ones_do_not():
    hits = {"plain": 0, "clustered": 0}
    for trial in range(200):
        shared = np.repeat(normal(20, "shared", trial), 8)
        values = (shared + 0.3 * np.array(normal(160, "own", trial))).tolist()
        names = np.repeat(np.arange(20), 8).tolist()
        for kind, clusters in (("plain", None), ("clustered", names)):
            found = bootstrap_mean(values, resamples=200, clusters=clusters)
            hits[kind] += found.low <= 0 <= found.high
    assert hits["plain"] / 200 < 0.7
    assert 0.86 <= hits["clustered"] / 200 <= 0.99


def test_clusters_of_one_are_the_plain_bootstrap():
    values = normal(15, "ones")
    plain, single = bootstrap_mean(values), bootstrap_mean(values, clusters=range(15))
    assert (plain.low, plain.high, plain.mean) == (single.low, single.high, single.mean)
    assert (plain.clusters, single.clusters) == (None, 15)
    assert standard_error(values) == pytest.approx(standard_error(values, clusters=range(15)))


def test_one_unit_says_that_there_is_no_interval():
    assert bootstrap_mean([3.0]) == Interval(3.0, None, None, 1)
    assert not bootstrap_mean([3.0]).available
    assert bootstrap_mean([3.0, 5.0], clusters=["a", "a"]) == Interval(4.0, None, None, 2, clusters=1)
    assert standard_error([3.0]) is None
    assert standard_error([3.0, 5.0], clusters=["a", "a"]) is None
    assert str(bootstrap_mean([3.0])) == "3 (no interval), n=1"


def test_standard_error_agrees_with_scipy():
    values = normal(17, "error")
    assert standard_error(values) == pytest.approx(stats.sem(values))


def test_standard_error_of_equal_clusters_is_that_of_their_means():
    values = np.array(normal(24, "clusters")).reshape(6, 4)
    names = np.repeat(np.arange(6), 4).tolist()
    assert standard_error(values.ravel().tolist(), names) == pytest.approx(stats.sem(values.mean(1)))


def test_many_values_are_drawn_in_parts(monkeypatch: pytest.MonkeyPatch):
    values = normal(50, "parts")
    whole = bootstrap_mean(values)
    monkeypatch.setattr(intervals, "AT_ONCE", 1000)
    parts = bootstrap_mean(values)
    assert (parts.low, parts.high) == pytest.approx((whole.low, whole.high), abs=0.05)


@pytest.mark.parametrize("values", [[], [1.0, math.nan], [math.inf]])
def test_values_without_a_mean_are_refused(values: list[float]):
    with pytest.raises(DataError, match="Expected at least one finite value for a mean, got"):
        bootstrap_mean(values)
    with pytest.raises(DataError, match="Expected at least one finite value for a mean, got"):
        standard_error(values)


def test_bad_requests_are_refused():
    for level, resamples in ((0.0, 10), (1.0, 10), (95, 10), (0.9, 0)):
        with pytest.raises(UsageError, match=r"Expected level in \(0, 1\)"):
            bootstrap_mean([1.0, 2.0], level=level, resamples=resamples)
    with pytest.raises(DataError, match="one cluster per value, got 1 for 2 values"):
        bootstrap_mean([1.0, 2.0], clusters=["a"])
