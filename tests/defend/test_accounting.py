"""Accountants of differentially private training."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from scipy.integrate import quad
from scipy.stats import norm

from fedglass.core.errors import UsageError
from fedglass.defend import accounting as opacus
from fedglass.defend.accounting import (
    Mechanism,
    budgets,
    clt_epsilon,
    clt_uniform_epsilon,
    composed_epsilon,
    gaussian_epsilon,
    noise_multiplier_for,
    prv_epsilon,
    rdp_epsilon,
)

DELTA = 1e-5
APPROXIMATE = (clt_epsilon, clt_uniform_epsilon)
RUN = Mechanism(noise_multiplier=1.1, sample_rate=0.01, steps=1000)


@pytest.mark.parametrize(("noise", "steps"), [(0.5, 1), (1.0, 1), (3.0, 4)])
def test_gaussian_is_the_hockey_stick_divergence(noise: float, steps: int) -> None:
    """delta = integral of max(0, p - e^eps q) for the outputs of two neighbours, by quadrature."""
    epsilon = gaussian_epsilon(Mechanism(noise, 1.0, steps), DELTA)
    mu = math.sqrt(steps) / noise
    start = (epsilon + mu**2 / 2) / mu  # where p = e^eps q
    delta, _ = quad(lambda x: norm.pdf(x, loc=mu) - math.exp(epsilon) * norm.pdf(x), start, start + 40)
    assert delta == pytest.approx(DELTA, rel=1e-4)


def test_full_batches_compose_exactly_in_any_order() -> None:
    runs = [Mechanism(1.0, 1.0, 3), Mechanism(2.0, 1.0, 4)]  # mu^2 = 3 + 1
    exact = gaussian_epsilon(Mechanism(1.0, 1.0, 4), DELTA)
    assert composed_epsilon(runs, DELTA) == pytest.approx(exact)
    assert composed_epsilon(runs[::-1], DELTA) == pytest.approx(exact)
    assert composed_epsilon([*runs, Mechanism(0.0, 0.1, 1)], DELTA) == math.inf


def test_what_sampling_gains_needs_a_package(monkeypatch: pytest.MonkeyPatch) -> None:
    for installed in ("opacus_installed", "pld_installed"):
        monkeypatch.setattr(opacus, installed, lambda: False)
    assert composed_epsilon([RUN], DELTA) is None


@pytest.mark.parametrize("noise", [0.7, 3.0, 40.0])
def test_uniform_batches_have_the_half_sided_divergence(noise: float) -> None:
    """mu^2 = 2 q^2 T E[max(0, L - 1)^2] with L the likelihood ratio of two neighbours, by quadrature."""
    shift, mechanism = 1 / noise, Mechanism(noise, 0.2, 9)
    half, _ = quad(lambda x: math.expm1(shift * x - shift**2 / 2) ** 2 * norm.pdf(x), shift / 2, shift + 40)
    same = Mechanism(1 / (0.2 * math.sqrt(2 * 9 * half)), 1.0, 1)
    assert clt_uniform_epsilon(mechanism, DELTA) == pytest.approx(gaussian_epsilon(same, DELTA), rel=1e-6)


def test_more_noise_spends_less_and_more_steps_more() -> None:
    for accountant in (clt_epsilon, clt_uniform_epsilon, gaussian_epsilon):
        spent = [accountant(Mechanism(z, 0.1, 10), DELTA) for z in (0.5, 1.0, 2.0, 50.0)]
        assert spent == sorted(spent, reverse=True)
        assert accountant(Mechanism(1.0, 0.1, 20), DELTA) > accountant(Mechanism(1.0, 0.1, 10), DELTA)


def test_without_noise_nothing_is_private() -> None:
    none = Mechanism(0.0, 0.5, 1)
    assert {f(none, DELTA) for f in (*APPROXIMATE, gaussian_epsilon, rdp_epsilon, prv_epsilon)} == {math.inf}
    assert clt_epsilon(Mechanism(1e-3, 0.5, 1), DELTA) == math.inf
    assert gaussian_epsilon(Mechanism(1e-3, 1.0, 1), DELTA) == pytest.approx(5e5, rel=0.05)


def test_strong_noise_spends_nothing() -> None:
    assert gaussian_epsilon(Mechanism(1e6, 1.0, 1), DELTA) == 0.0


@pytest.mark.parametrize("epsilon", [0.5, 10.0, 1e4])
def test_the_noise_for_a_budget_spends_it(epsilon: float) -> None:
    noise = noise_multiplier_for(epsilon, DELTA, 1.0, 3, gaussian_epsilon)
    assert gaussian_epsilon(Mechanism(noise, 1.0, 3), DELTA) == pytest.approx(epsilon, rel=1e-4)


def test_the_approximation_is_labelled() -> None:
    by_name = {b.accountant: b for b in budgets(RUN, DELTA)}
    assert not by_name["CLT"].bound
    assert "approximation" in str(by_name["CLT"])
    exact = {b.accountant: b for b in budgets(Mechanism(1.0, 1.0, 1), DELTA)}["Gaussian"]
    assert exact.bound
    assert "≤" in str(exact)


def test_without_opacus_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opacus, "opacus_installed", lambda: False)
    for accountant in (rdp_epsilon, prv_epsilon):
        with pytest.raises(UsageError, match=r"pip install fedglass\[dp\]"):
            accountant(RUN, DELTA)
    assert [b.accountant for b in budgets(RUN, DELTA)] == ["CLT"]


@pytest.mark.parametrize(("noise", "rate", "steps"), [(-1.0, 0.1, 1), (1.0, 0.0, 1), (1.0, 1.5, 1), (1.0, 0.1, 0)])
def test_bad_mechanisms_are_refused(noise: float, rate: float, steps: int) -> None:
    with pytest.raises(UsageError, match=r"Mechanism\."):
        Mechanism(noise, rate, steps)


@pytest.mark.parametrize("delta", [0.0, 1.0, -1e-5, math.nan])
def test_bad_deltas_are_refused(delta: float) -> None:
    for accountant in (*APPROXIMATE, gaussian_epsilon, rdp_epsilon, prv_epsilon):
        with pytest.raises(UsageError, match="delta must be in"):
            accountant(RUN, delta)


@pytest.mark.parametrize("epsilon", [0.0, -1.0, math.inf])
def test_bad_budgets_are_refused(epsilon: float) -> None:
    with pytest.raises(UsageError, match="epsilon must be"):
        noise_multiplier_for(epsilon, DELTA, 1.0, 1, gaussian_epsilon)


@pytest.mark.parametrize(
    "mechanism", [Mechanism(0.03785, 1.0, 10**6), Mechanism(1e-160, 1, 1), Mechanism(1e-170, 0.5, 1)]
)
@pytest.mark.parametrize("accountant", [clt_epsilon, clt_uniform_epsilon, gaussian_epsilon])
def test_next_to_no_noise_is_no_error(accountant: Callable[[Mechanism, float], float], mechanism: Mechanism) -> None:
    assert accountant(mechanism, 1e-5) > 1e6
