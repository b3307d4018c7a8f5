"""The candidate game of a simulated best adversary, beside its exact success and the bound."""

from __future__ import annotations

import math

import pytest
import torch
from scipy.integrate import quad
from scipy.stats import norm
from torch import Tensor

from fedglass.bounds import mechanisms as candidates
from fedglass.bounds.mechanisms import centred_gram, simulated_success
from fedglass.bounds.success import gdp_success
from fedglass.core.errors import UsageError
from fedglass.core.rng import stream

EXACT = {10: (0.1992, 0.3409, 0.6736), 1000: (0.0045, 0.0166, 0.1203)}
BOUND = {10: (0.2172, 0.3891, 0.7638), 1000: (0.0048, 0.0183, 0.1378)}
MUS = (0.5, 1.0, 2.0)


def exact_success(count: int, mu: float) -> float:
    """The integral of phi(t - mu) Phi(t)^(n - 1): orthogonal candidates, mu deviations of the noise long."""
    whole, _ = quad(lambda t: norm.pdf(t - mu) * math.exp((count - 1) * norm.logcdf(t)), mu - 10, mu + 10)
    return float(whole)


def error_of(rate: float, draws: int) -> float:
    return math.sqrt(rate * (1 - rate) / draws)


def orthonormal(count: int, size: int) -> Tensor:
    """Orthonormal rows, moved by one common vector, which no game depends on."""
    generator = stream(1, "orthonormal", count)
    rows = torch.linalg.qr(torch.randn(size, count, generator=generator, dtype=torch.float64)).Q.T
    return (rows + torch.randn(size, generator=generator, dtype=torch.float64)).float()


@pytest.mark.parametrize(("count", "draws"), [(10, 40_000), (1000, 6000)])
def test_the_simulated_adversary_finds_the_exact_success(count: int, draws: int) -> None:
    gram = centred_gram(orthonormal(count, size=1100))
    for mu in MUS:
        found = simulated_success(gram, 1 / mu, draws, stream(2, "draws"))
        exact = exact_success(count, mu)
        assert exact == pytest.approx(EXACT[count][MUS.index(mu)], abs=5e-5)
        assert found == pytest.approx(exact, abs=4 * error_of(exact, draws))
        assert exact < gdp_success(1 / count, mu) == pytest.approx(BOUND[count][MUS.index(mu)], abs=5e-5)


def test_the_adversary_is_the_one_that_sees_the_whole_message() -> None:
    """Correlated candidates of different lengths: the nearest to the noisy message, drawn in full."""
    generator, count, draws, std = stream(3, "whole"), 12, 40_000, 6.0
    updates = torch.randn(count, 3, generator=generator) @ torch.randn(3, 8, generator=generator).mul(2)
    truth = torch.randint(count, (draws,), generator=generator)
    messages = updates[truth] + std * torch.randn(draws, 8, generator=generator)
    nearest = float((torch.cdist(messages, updates).argmin(dim=1) == truth).double().mean())

    found = simulated_success(centred_gram(updates), std, draws, generator)
    assert 0.2 < nearest < 0.8
    assert found == pytest.approx(nearest, abs=4 * math.sqrt(2) * error_of(found, draws))


def test_the_adversary_stays_within_the_bound() -> None:
    updates = torch.randn(200, 30, generator=stream(4, "bound"))
    reach = float((updates - updates.mean(dim=0)).norm(dim=1).max())
    for std in (1.0, 4.0, 20.0):
        found = simulated_success(centred_gram(updates), std, 20_000, stream(5, "bound"))
        assert found <= gdp_success(1 / 200, reach / std) + 4 * error_of(found, 20_000)
        assert found >= 1 / 200 - 4 * error_of(1 / 200, 20_000)


def test_more_candidates_are_harder_and_a_part_has_a_part_of_the_products() -> None:
    gram = centred_gram(torch.randn(500, 60, generator=stream(6, "pool")))
    found = [simulated_success(gram[:n, :n], 6.0, 10_000, stream(7, n)) for n in (2, 10, 100, 500)]
    assert found == sorted(found, reverse=True)
    assert found[0] > 3 * found[-1]


def test_without_noise_all_that_differ_are_named() -> None:
    same = centred_gram(torch.ones(20, 3))

    assert simulated_success(centred_gram(torch.eye(20)), 0.0, 1000, stream(8, "apart")) == 1
    for noise in (0.0, 1.0):
        found = simulated_success(same, noise, 20_000, stream(8, "same", str(noise)))
        assert found == pytest.approx(1 / 20, abs=4 * error_of(1 / 20, 20_000))


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
