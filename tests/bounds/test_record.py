"""The certificate of single records."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from fedglass.bounds.record import RecordBound, record_bound
from fedglass.bounds.success import largest_mu
from fedglass.core.errors import UsageError
from fedglass.core.rng import stream


def test_rounds_add_with_their_own_noise() -> None:
    bound = record_bound([[3.0, 0.5], [8.0, 0.0], [0.0, 1.2]], noise_stds=[1.0, 2.0, 1.0])

    assert bound.mu == pytest.approx((5.0, 1.3))
    assert (bound.rounds, bound.worst, bound.base_rate) == (3, 0, 1e-3)


def test_the_success_is_that_of_the_check_values() -> None:
    bound = record_bound([[0.5, 2.0, 1.0]], noise_stds=[1.0])

    assert bound.success == pytest.approx((0.004796, 0.137805, 0.018298), abs=5e-7)
    assert bound.advantage == pytest.approx((0.197413, 0.682689, 0.382925), abs=5e-7)
    assert (bound.worst, bound.worst_success) == (1, max(bound.success))


def test_a_likelihood_ratio_test_attains_the_bound() -> None:
    """The event that has probability kappa under the reference and is most likely with the record."""
    generator, draws, rate, std = stream(0, "attained"), 200_000, 0.01, 0.7
    update, reference = torch.randn(2, 6, generator=generator, dtype=torch.float64)
    away = update - reference
    bound = record_bound([[float(away.norm())]], [std], base_rate=rate)
    noise = std * torch.randn(draws, 6, generator=generator, dtype=torch.float64)
    threshold = torch.quantile(noise @ away, 1 - rate)
    named = float(((noise + away) @ away > threshold).double().mean())

    (exact,) = bound.success
    # The threshold is estimated too: its own error adds as much again.
    assert named == pytest.approx(exact, abs=4 * math.sqrt(2 * exact * (1 - exact) / (draws * rate)))


def test_one_open_record_is_not_hidden_by_the_others() -> None:
    bound = record_bound(np.array([[0.1] * 999 + [9.0]]), [1.0])

    assert bound.worst == 999
    assert bound.worst_success > 0.99
    assert sum(bound.success) / 1000 < 0.01


def test_without_noise_only_an_equal_message_tells_nothing() -> None:
    bound = record_bound([[0.0, 1e-9]], [0.0])

    assert bound.mu == (0.0, math.inf)
    assert bound.success == (pytest.approx(1e-3), 1.0)


def test_more_rounds_tell_more() -> None:
    bound = record_bound([[0.3, 0.1], [0.4, 0.1]], [1.0, 1.0])

    assert bound.mu[0] == pytest.approx(0.5)
    planned = bound.projected(200)
    assert (planned.mu[0], planned.rounds) == (pytest.approx(5.0), 200)
    assert planned.mu[1] == pytest.approx(math.sqrt(200) * 0.1)
    assert bound.projected(1) == bound
    assert bound.outlook(200) == "The bound 0.0048 holds for 2 rounds; at the planned 200 rounds it is 0.972."
    assert bound.outlook(2) == "The bound 0.0048 holds for 2 rounds."


def test_the_gate_is_passed_exactly_up_to_its_mu() -> None:
    mu = largest_mu(1e-3, 0.05)

    assert RecordBound((mu * 0.999,)).worst_success < 0.05 < RecordBound((mu * 1.001,)).worst_success


def test_a_tensor_of_distances_will_do() -> None:
    assert record_bound(torch.tensor([[3.0], [4.0]]), [1.0, 1.0]).mu == (5.0,)


@pytest.mark.parametrize(
    ("distances", "stds"),
    [([[1.0]], [1.0, 1.0]), ([1.0], [1.0]), ([[math.nan]], [1.0]), ([[1.0]], [-1.0]), ([[]], [1.0])],
)
def test_what_is_no_distance_is_refused(distances: list[list[float]], stds: list[float]) -> None:
    with pytest.raises(UsageError):
        record_bound(distances, stds)
