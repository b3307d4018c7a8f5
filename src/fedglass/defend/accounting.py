"""Privacy budget of differentially private training: (epsilon, delta) by several accountants, which disagree.

All accountants take one mechanism: the Gaussian mechanism on Poisson samples, in which each example takes part
independently. Training on slices of a shuffled epoch is customarily accounted for in the same way, as if sampling
amplified its privacy. That is no bound: an example is in one slice of every epoch, and is accounted for so here. The
RDP and PRV accountants are those of Opacus, an optional package that is imported on first use.
"""

from __future__ import annotations

import importlib
import importlib.util
import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy

from fedglass.bounds.mechanisms import pld_installed, poisson_epsilon
from fedglass.bounds.success import combine_mu, gdp_delta, gdp_epsilon
from fedglass.core.errors import UsageError
from fedglass.core.types import Training
from fedglass.defend.dpsgd import DPSGD, PoissonDPSGD
from fedglass.defend.per_example import check_at_least_zero, check_closed_share, check_positive

ORDERS = (
    *(1 + x / 100 for x in range(1, 10)),
    *(1 + x / 10 for x in range(1, 100)),
    *range(11, 64),
    *(64, 80, 96, 128, 192, 256, 384, 512, 768, 1024),
)
"""Rényi orders: wider than Opacus' own, so that very weak and very strong noise get their best bound too."""


DELTA = 1e-5
"""The delta at which budgets are stated: customary, and below one in the number of a client's examples."""
PRV_LIMIT = 1000.0
"""The PRV accountant is not run above this epsilon: its time and memory grow with it, and no second digit is needed."""


def opacus_installed() -> bool:
    """Return True if Opacus is installed."""
    return importlib.util.find_spec("opacus") is not None


@dataclass(frozen=True)
class Mechanism:
    """The Gaussian mechanism on random batches, some steps of it."""

    noise_multiplier: float
    sample_rate: float
    """The probability that a given example is in the batch of a step."""
    steps: int

    def __post_init__(self) -> None:
        check_at_least_zero(self, "noise_multiplier")
        check_positive(self, "sample_rate")
        check_closed_share(self, "sample_rate")
        if self.steps < 1:
            raise UsageError(f"Mechanism.steps must be at least 1, got {self.steps}.")


@dataclass(frozen=True)
class Budget:
    """One accountant's epsilon at a delta.

    >>> str(Budget("CLT", 2.29, 1e-05, bound=False))
    'ε ≈ 2.29 at δ = 1e-05 (CLT: an approximation, not a bound)'
    """

    accountant: str
    epsilon: float
    delta: float
    bound: bool
    """Whether the true epsilon is at most this one."""

    def __str__(self) -> str:
        sign, remark = ("≤", "") if self.bound else ("≈", ": an approximation, not a bound")
        return f"ε {sign} {self.epsilon:.3g} at δ = {self.delta:g} ({self.accountant}{remark})"


def client_mechanism(defence: DPSGD, training: Training, examples: int, rounds: int = 1) -> Mechanism:
    """Return the mechanism of a client that trains with DP-SGD, for each of its examples.

    An example is in one slice of every shuffled epoch: such batches do not amplify privacy, Poisson samples of all
    examples do.

    >>> client_mechanism(DPSGD(clip=1.0, noise_multiplier=2.0), Training(lr=0.1, epochs=3, batch_size=10), 50)
    Mechanism(noise_multiplier=2.0, sample_rate=1.0, steps=3)
    """
    if isinstance(defence, PoissonDPSGD) and (training.batch_size or examples) >= examples:
        steps = training.local_steps(examples)
        return Mechanism(defence.noise_multiplier, defence.sample_rate, steps * rounds)
    return Mechanism(defence.noise_multiplier, 1.0, training.passes(examples) * rounds)


def budgets(mechanism: Mechanism, delta: float) -> tuple[Budget, ...]:
    """Return every accountant's epsilon: RDP and PRV if Opacus is installed, and one that is always available.

    >>> [b.accountant for b in budgets(Mechanism(2.0, sample_rate=1.0, steps=1), 1e-5)][-1]
    'Gaussian'
    """
    spent = []
    if opacus_installed():
        bound = rdp_epsilon(mechanism, delta)
        spent.append(Budget("RDP", bound, delta, bound=True))
        if bound < PRV_LIMIT:
            spent.append(Budget("PRV", prv_epsilon(mechanism, delta), delta, bound=True))
    if mechanism.sample_rate == 1:
        spent.append(Budget("Gaussian", gaussian_epsilon(mechanism, delta), delta, bound=True))
    else:
        spent.append(Budget("CLT", clt_epsilon(mechanism, delta), delta, bound=False))
    return tuple(spent)


def composed_epsilon(runs: Sequence[Mechanism], delta: float) -> float | None:
    """Return a bound on epsilon of several runs; None where only an optional package counts what sampling gains.

    >>> round(composed_epsilon([Mechanism(1.0, sample_rate=1.0, steps=1)] * 2, 1e-5), 3)
    6.573
    """
    if any(run.noise_multiplier == 0 for run in runs):
        return math.inf
    if all(run.sample_rate == 1 for run in runs):
        return gdp_epsilon(combine_mu([math.sqrt(run.steps) / run.noise_multiplier for run in runs]), delta)
    bounds = [rdp_epsilon(runs, delta)] if opacus_installed() else []
    rates = {(run.sample_rate, run.noise_multiplier) for run in runs}
    if len(rates) == 1 and pld_installed():
        bounds.append(poisson_epsilon(*rates.pop(), sum(run.steps for run in runs), delta))
    return min(bounds, default=None)


def rdp_epsilon(mechanism: Mechanism | Sequence[Mechanism], delta: float) -> float:
    """Return an upper bound by Rényi differential privacy [Mironov et al., 2019]; needs `fedglass[dp]`."""
    _check(delta)
    runs = [mechanism] if isinstance(mechanism, Mechanism) else mechanism
    if any(run.noise_multiplier == 0 for run in runs):
        return math.inf
    accountant = _accountant("RDPAccountant", *runs)
    with warnings.catch_warnings():
        # It warns where the best order is the first or the last: the bound holds at every order.
        warnings.simplefilter("ignore")
        return float(accountant.get_epsilon(delta=delta, alphas=list(ORDERS)))


def prv_epsilon(mechanism: Mechanism, delta: float) -> float:
    """Return an upper bound by privacy loss random variables [Gopi et al., 2021]; needs `fedglass[dp]`.

    It is infinite, which is a bound too, if the noise is too weak for the numerical composition.
    """
    _check(delta)
    if mechanism.noise_multiplier == 0:
        return math.inf
    accountant = _accountant("PRVAccountant", mechanism)
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        try:
            epsilon = float(accountant.get_epsilon(delta=delta))
        except RuntimeError:  # its own check: the discrete and the continuous mean differ
            return math.inf
    return math.inf if math.isnan(epsilon) else epsilon


def clt_epsilon(mechanism: Mechanism, delta: float) -> float:
    """Return an APPROXIMATION by the central limit theorem of Gaussian DP [Bu et al., 2020].

    mu = q sqrt(T (exp(1 / z^2) - 1)) for T steps of sampling rate q and noise multiplier z. It can lie below the
    true epsilon, so it is not a bound.

    >>> round(clt_epsilon(Mechanism(noise_multiplier=1.1, sample_rate=0.01, steps=1000), 1e-5), 3)
    1.377
    """
    _check(delta)
    z = mechanism.noise_multiplier
    if z < 700**-0.5:  # exp overflows
        return math.inf
    return _epsilon(mechanism.sample_rate * math.sqrt(mechanism.steps * math.expm1(z**-2)), delta)


def clt_uniform_epsilon(mechanism: Mechanism, delta: float) -> float:
    """Return an APPROXIMATION like `clt_epsilon`, for batches of one size, drawn without replacement.

    mu = sqrt(2 T) q sqrt(exp(1 / z^2) Phi(3 / 2z) + 3 Phi(-1 / 2z) - 2) [Dong, Roth and Su, 2022, Corollary 5.4].

    >>> round(clt_uniform_epsilon(Mechanism(noise_multiplier=1.1, sample_rate=0.01, steps=1000), 1e-5), 3)
    1.82
    """
    _check(delta)
    z = mechanism.noise_multiplier
    if z < 700**-0.5:
        return math.inf
    # exp(1/z^2) - 1 and 1 - Phi are computed separately, since they cancel for strong noise.
    above, below = math.expm1(z**-2), math.expm1(z**-2) + 1
    excess = above - below * float(scipy.special.ndtr(-1.5 / z)) + 3 * float(scipy.special.ndtr(-0.5 / z)) - 1
    return _epsilon(mechanism.sample_rate * math.sqrt(2 * mechanism.steps * max(0.0, excess)), delta)


def gaussian_epsilon(mechanism: Mechanism, delta: float) -> float:
    """Return the exact epsilon of steps that all use every example: T Gaussian mechanisms are one of mu = sqrt(T) / z.

    [Dong, Roth and Su, 2022, Corollary 3.3; Balle and Wang, 2018, Theorem 8]. With a sampling rate below 1 it is a
    bound that ignores the amplification by sampling.

    >>> round(gaussian_epsilon(Mechanism(noise_multiplier=1.0, sample_rate=1.0, steps=1), 1e-5), 3)
    4.377
    """
    _check(delta)
    if mechanism.noise_multiplier == 0:
        return math.inf
    return _epsilon(math.sqrt(mechanism.steps) / mechanism.noise_multiplier, delta)


def noise_multiplier_for(
    epsilon: float,
    delta: float,
    sample_rate: float,
    steps: int,
    accountant: Callable[[Mechanism, float], float],
) -> float:
    """Return the noise multiplier that spends epsilon by the given accountant.

    >>> round(noise_multiplier_for(4.377, 1e-5, 1.0, 1, gaussian_epsilon), 3)
    1.0
    """
    if not (math.isfinite(epsilon) and epsilon > 0):
        raise UsageError(f"epsilon must be a finite number above 0, got {epsilon!r}.")

    def excess(log_noise: float) -> float:
        spent = accountant(Mechanism(math.exp(log_noise), sample_rate, steps), delta)
        return min(spent, 1e300) - epsilon

    low, high = _bracket(excess, -1.0, 1.0)
    return math.exp(scipy.optimize.brentq(excess, low, high, xtol=1e-6))


def _accountant(name: str, *runs: Mechanism) -> Any:
    """Return an accountant of Opacus that has seen all steps of the mechanisms."""
    if not opacus_installed():
        raise UsageError(
            "The RDP and PRV accountants need the package opacus, which is not installed: pip install fedglass[dp]."
        )
    accountant = getattr(importlib.import_module("opacus.accountants"), name)()
    accountant.history = [(run.noise_multiplier, run.sample_rate, run.steps) for run in runs]
    return accountant


def _bracket(excess: Callable[[float], float], low: float, high: float) -> tuple[float, float]:
    """Widen the interval until the decreasing function changes its sign between the two ends."""
    for _ in range(6):
        if excess(low) >= 0 >= excess(high):
            return low, high
        low, high = (2 * low, high) if excess(low) < 0 else (low, 2 * high)
    raise UsageError("No noise multiplier spends that epsilon by this accountant: choose another epsilon or delta.")


def _epsilon(mu: float, delta: float) -> float:
    """Return epsilon of mu-Gaussian DP at delta; about mu^2 / 2 for a large mu."""
    if mu > 1e150:
        return math.inf

    def excess(epsilon: float) -> float:
        return gdp_delta(mu, epsilon) - delta

    if excess(0.0) <= 0:
        return 0.0
    high = 1.0
    while excess(high) > 0:
        high *= 2
    return float(scipy.optimize.brentq(excess, 0.0, high, xtol=1e-10))


def _check(delta: float) -> None:
    if not 0 < delta < 1:
        raise UsageError(f"delta must be in (0, 1), got {delta!r}.")
