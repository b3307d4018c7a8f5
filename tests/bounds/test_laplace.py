"""The bound of Laplacian noise beside an exact case and beside simulated likelihood tests."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fedglass.bounds.mechanisms import ORDERS, laplace_renyi, renyi_success


def test_nothing_moved_is_nothing_told() -> None:
    assert renyi_success(1e-3, laplace_renyi(np.zeros(10))) == pytest.approx(1e-3, rel=5e-3)


@pytest.mark.parametrize("shift", [0.1, 0.5, 2.0])
def test_one_entry_beside_the_exact_success(shift: float) -> None:
    """P[X > t] under Laplace(shift) where P[X > t] = 1/1000 under Laplace(0) is e^shift / 1000 while t > shift."""
    exact = 1e-3 * math.exp(shift)
    bound = renyi_success(1e-3, laplace_renyi(np.array([shift])))
    assert exact <= bound <= 3 * exact


@pytest.mark.parametrize(("entries", "size"), [(400, 0.05), (2000, 0.05), (100, 0.3)])
def test_the_best_test_does_not_beat_the_bound(entries: int, size: float) -> None:
    """The likelihood ratio at a base rate of 1/100, of which 200,000 draws tell enough."""
    shifts = np.full(entries, size)
    generator = np.random.default_rng(0)

    def ratios(moved: bool) -> np.ndarray:
        found = []
        for _ in range(20):
            noise = generator.laplace(size=(2000, entries)) + (shifts if moved else 0.0)
            found.append((np.abs(noise) - np.abs(noise - shifts)).sum(1))
        return np.concatenate(found)

    limit = np.quantile(ratios(False), 0.99)
    reached = float((ratios(True) > limit).mean())
    bound = renyi_success(0.01, laplace_renyi(shifts))
    error = 4 * math.sqrt(reached * (1 - reached) / 40_000)
    assert reached - error <= bound
    assert bound <= 4 * reached  # and it is no idle bound


def test_divergences_add_up_and_grow() -> None:
    one, two = laplace_renyi(np.array([0.3])), laplace_renyi(np.array([0.3, -0.3]))
    assert two == pytest.approx(2 * one)
    assert (np.diff(one) >= -1e-12).all()
    assert len(ORDERS) == len(one)


@pytest.mark.parametrize("shift", [1e5, 1e306, math.inf])
def test_a_shift_that_no_float_holds_is_told_as_a_success_of_one(shift: float) -> None:
    assert renyi_success(1e-3, laplace_renyi(np.array([shift, 0.0]))) == 1
