"""DP-SGD on Poisson samples."""

from __future__ import annotations

import importlib.util
import math

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.optimize import brentq

from fedglass.bounds.mechanisms import composed_mu, poisson_advantage, poisson_epsilon, poisson_success
from fedglass.bounds.success import gdp_advantage, gdp_epsilon, gdp_success
from fedglass.core.errors import UsageError


@pytest.fixture
def _accountant() -> None:
    pytest.importorskip("dp_accounting")


def test_steps_compose_without_amplification() -> None:
    assert composed_mu(2.0, 4) == 1
    assert composed_mu(0.0, 4) == math.inf
    assert gdp_success(1e-3, composed_mu(2.0, 4)) == pytest.approx(0.018298, abs=5e-7)
    assert gdp_epsilon(composed_mu(2.0, 4), 1e-5) == pytest.approx(4.3772, abs=5e-5)


def test_without_the_extra_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    for ask in (lambda: poisson_success(1e-3, 0.123, 1.0, 3), lambda: poisson_epsilon(0.123, 1.0, 3, 1e-5)):
        with pytest.raises(UsageError, match=r"not installed: pip install fedglass\[pld\]\.$"):
            ask()


@pytest.mark.usefixtures("_accountant")
@pytest.mark.parametrize(
    ("run", "epsilon", "success"),
    [
        ((0.01, 1.0, 1000), 1.8289, 0.00407),
        ((0.1, 1.0, 100), 7.0466, 0.03878),
        ((0.5, 2.0, 50), 9.4736, 0.10414),
        ((1.0, 2.0, 4), 4.3772, 0.01830),
    ],
)
def test_check_values(run: tuple[float, float, int], epsilon: float, success: float) -> None:
    assert poisson_epsilon(*run, 1e-5) == pytest.approx(epsilon, rel=3e-4)
    assert poisson_success(1e-3, *run) == pytest.approx(success, abs=5e-6)


def exact_success(base_rate: float, q: float, sigma: float, steps: int) -> float:
    """P[L > t] with the record, where P[L > t] = kappa without it: both by Gil-Pelaez' inversion, L the loss."""
    x, h = np.linspace(-10 * sigma, 1 + 10 * sigma, 4001, retstep=True)
    absent = np.exp(-((x / sigma) ** 2) / 2) * h / (sigma * math.sqrt(2 * math.pi))
    ratio = np.logaddexp(math.log1p(-q), math.log(q) + (x - 0.5) / sigma**2)
    present = absent * np.exp(ratio)
    spread = math.sqrt(steps * float(present @ ratio**2))
    frequencies = (np.arange(4000) + 0.5) * math.pi / (40 * spread + 20)

    def transform(density: NDArray[np.float64]) -> NDArray[np.complex128]:
        return np.array([(np.exp(1j * u * ratio) @ density) ** steps for u in frequencies])

    def above(loss: float, of: NDArray[np.complex128]) -> float:
        waves = np.imag(of * np.exp(-1j * frequencies * loss)) / frequencies
        return 0.5 + float(waves.sum()) * float(frequencies[1] - frequencies[0]) / math.pi

    without, with_record = transform(absent), transform(present)
    threshold = brentq(lambda t: above(t, without) - base_rate, -5.0, 30.0)
    assert abs(without[-1]) < 1e-12  # the sum is cut where nothing is left
    return above(threshold, with_record)


@pytest.mark.usefixtures("_accountant")
@pytest.mark.parametrize("run", [(0.1, 1.0, 100), (0.001, 0.5, 10_000), (0.01, 5.0, 10_000)])
def test_the_bound_is_just_above_the_truth(run: tuple[float, float, int]) -> None:
    exact = exact_success(1e-3, *run)

    assert exact <= poisson_success(1e-3, *run) <= exact * (1 + 1e-3)


@pytest.mark.usefixtures("_accountant")
def test_sampling_helps_and_never_hurts() -> None:
    found = [poisson_success(1e-3, q, 1.0, 20) for q in (0.01, 0.1, 0.5, 1.0)]

    assert found == sorted(found)
    assert found[-1] == pytest.approx(gdp_success(1e-3, composed_mu(1.0, 20)), rel=1e-6)
    assert found[0] < found[-1] / 10
    advantages = [poisson_advantage(q, 1.0, 20) for q in (0.01, 0.1, 1.0)]
    assert advantages == sorted(advantages)
    assert advantages[-1] == pytest.approx(gdp_advantage(composed_mu(1.0, 20)), rel=1e-6)
    assert advantages[0] < 1 - 0.99**20  # the chance of being in some batch
    assert poisson_success(0.5, 0.1, 1.0, 20) < gdp_success(0.5, composed_mu(1.0, 20))


@pytest.mark.usefixtures("_accountant")
def test_without_noise_only_the_sampling_hides() -> None:
    assert poisson_success(1e-3, 0.01, 0.0, 10) == pytest.approx(1 - 0.99**10 * (1 - 1e-3))
    assert poisson_success(1e-3, 1.0, 0.0, 1) == 1
    assert poisson_epsilon(0.01, 0.0, 10, 1e-5) == math.inf


@pytest.mark.usefixtures("_accountant")
def test_an_open_run_is_answered_too() -> None:
    assert poisson_success(1e-3, 1.0, 0.25, 5000) == 1
    assert poisson_epsilon(1.0, 0.25, 5000, 1e-5) == pytest.approx(gdp_epsilon(composed_mu(0.25, 5000), 1e-5))


@pytest.mark.parametrize(("q", "sigma", "steps"), [(0.0, 1.0, 1), (1.1, 1.0, 1), (0.1, -1.0, 1), (0.1, 1.0, 0)])
def test_what_is_no_run_is_refused(q: float, sigma: float, steps: int) -> None:
    with pytest.raises(UsageError, match="must be"):
        poisson_success(1e-3, q, sigma, steps)
