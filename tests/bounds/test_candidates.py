"""The candidate game: exact, bounded and simulated."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.stats import norm
from torch import Tensor

from fedglass.bounds import candidates
from fedglass.bounds.candidates import (
    candidate_bound,
    centred_gram,
    orthonormal_success,
    simulated_success,
    simulated_success_of_gram,
)
from fedglass.core.errors import UsageError
from fedglass.core.rng import stream

EXACT = {10: (0.1992, 0.3409, 0.6736), 1000: (0.0045, 0.0166, 0.1203)}
BOUND = {10: (0.2172, 0.3891, 0.7638), 1000: (0.0048, 0.0183, 0.1378)}
MUS = (0.5, 1.0, 2.0)


@pytest.mark.parametrize("count", [10, 1000])
def test_check_values(count: int) -> None:
    assert [orthonormal_success(count, mu) for mu in MUS] == pytest.approx(EXACT[count], abs=5e-5)
    assert [candidate_bound(count, mu) for mu in MUS] == pytest.approx(BOUND[count], abs=5e-5)


@pytest.mark.parametrize("count", [1, 2, 1000, 10**6])
@pytest.mark.parametrize("mu", [0.0, 0.1, 3.0])
def test_the_sum_is_the_integral(count: int, mu: float) -> None:
    middle = math.sqrt(2 * math.log(count)) if count > 1 else 0.0
    whole, _ = quad(
        lambda t: norm.pdf(t - mu) * math.exp((count - 1) * norm.logcdf(t)),
        mu - 12,
        mu + 12,
        points=[mu, middle],
        epsabs=1e-14,
        limit=200,
    )

    assert orthonormal_success(count, mu) == pytest.approx(whole, rel=1e-8)


def test_without_a_message_one_of_n_is_named() -> None:
    assert orthonormal_success(10**9, 0.0) == pytest.approx(1e-9, rel=1e-8)
    assert orthonormal_success(7, math.inf) == 1


def test_two_candidates_are_one_test_of_their_distance() -> None:
    assert orthonormal_success(2, 1.3) == pytest.approx(norm.cdf(1.3 / math.sqrt(2)))


@given(st.integers(2, 10**6), st.floats(0, 12))
def test_the_bound_is_above_the_game(count: int, mu: float) -> None:
    assert orthonormal_success(count, mu) <= candidate_bound(count, mu) * (1 + 1e-9)


@given(st.integers(2, 10**5), st.floats(0, 8), st.floats(0.01, 2))
def test_the_game_is_easier_with_less_noise_and_fewer_candidates(count: int, mu: float, more: float) -> None:
    assert orthonormal_success(count, mu) < orthonormal_success(count, mu + more) + 1e-15
    assert orthonormal_success(count, mu) > orthonormal_success(2 * count, mu) - 1e-15


def orthonormal(count: int, size: int) -> Tensor:
    """Orthonormal rows, moved by one common vector, which no game depends on."""
    generator = stream(1, "orthonormal", count)
    rows = torch.linalg.qr(torch.randn(size, count, generator=generator, dtype=torch.float64)).Q.T
    return (rows + torch.randn(size, generator=generator, dtype=torch.float64)).float()


@pytest.mark.parametrize(("count", "draws"), [(10, 40_000), (1000, 6000)])
def test_the_simulated_adversary_finds_the_exact_success(count: int, draws: int) -> None:
    gram = centred_gram(orthonormal(count, size=1100))
    for mu in MUS:
        found = simulated_success_of_gram(gram, 1 / mu, draws, stream(2, "draws"))
        exact = orthonormal_success(count, mu)
        error = math.sqrt(exact * (1 - exact) / draws)
        assert found.mean == pytest.approx(exact, abs=4 * error)
        assert found.standard_error == pytest.approx(error, rel=0.5)


def test_the_adversary_is_the_one_that_sees_the_whole_message() -> None:
    """Correlated candidates of different lengths: the nearest to the noisy message, drawn in full."""
    generator, count, draws, std = stream(3, "whole"), 12, 40_000, 6.0
    updates = torch.randn(count, 3, generator=generator) @ torch.randn(3, 8, generator=generator).mul(2)
    truth = torch.randint(count, (draws,), generator=generator)
    messages = updates[truth] + std * torch.randn(draws, 8, generator=generator)
    nearest = float((torch.cdist(messages, updates).argmin(dim=1) == truth).double().mean())

    found = simulated_success(updates, std, draws, generator)
    assert 0.2 < nearest < 0.8
    assert found.mean == pytest.approx(nearest, abs=4 * math.sqrt(2) * found.standard_error)


def test_the_adversary_stays_within_the_bound() -> None:
    updates = torch.randn(200, 30, generator=stream(4, "bound"))
    reach = float((updates - updates.mean(dim=0)).norm(dim=1).max())
    for std in (1.0, 4.0, 20.0):
        found = simulated_success(updates, std, 20_000, stream(5, "bound"))
        assert found.mean <= candidate_bound(200, reach / std) + 4 * found.standard_error
        assert found.mean >= 1 / 200 - 4 * found.standard_error


def test_more_candidates_are_harder_and_a_part_has_a_part_of_the_products() -> None:
    gram = centred_gram(torch.randn(500, 60, generator=stream(6, "pool")))
    found = [simulated_success_of_gram(gram[:n, :n], 6.0, 10_000, stream(7, n)).mean for n in (2, 10, 100, 500)]
    assert found == sorted(found, reverse=True)
    assert found[0] > 3 * found[-1]


def test_without_noise_all_that_differ_are_named() -> None:
    apart = simulated_success(torch.eye(20), 0.0, 1000, stream(8, "apart"))
    same = simulated_success(torch.ones(20, 3), 0.0, 20_000, stream(8, "same"))
    hidden = simulated_success(torch.ones(20, 3), 1.0, 20_000, stream(8, "hidden"))

    assert apart.mean == 1
    assert same.mean == pytest.approx(1 / 20, abs=4 * same.standard_error)
    assert hidden.mean == pytest.approx(1 / 20, abs=4 * hidden.standard_error)
    assert 0 < apart.standard_error < 0.01


def test_products_come_in_blocks_and_in_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small differences of long updates, which single precision would lose."""
    base = torch.full((1, 1000), 1000.0)
    updates = base + torch.randn(6, 1000, generator=stream(9, "blocks")) / 100
    centred = updates.double() - updates.double().mean(dim=0)
    monkeypatch.setattr(candidates, "BLOCK_VALUES", 6 * 7)

    assert torch.allclose(centred_gram(updates), centred @ centred.T, rtol=1e-9)


def test_updates_without_rows_or_with_nan_are_refused() -> None:
    with pytest.raises(UsageError, match="one row per candidate"):
        centred_gram(torch.ones(3))
    with pytest.raises(UsageError, match="not finite"):
        centred_gram(torch.tensor([[1.0], [math.nan]]))
