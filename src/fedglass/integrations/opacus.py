"""Opacus, an optional package, as accountant of differentially private training."""

from __future__ import annotations

import importlib
import importlib.util
import math
import warnings
from types import ModuleType

import numpy as np

from fedglass.core.errors import UsageError

ORDERS = (
    *(1 + x / 100 for x in range(1, 10)),
    *(1 + x / 10 for x in range(1, 100)),
    *range(11, 64),
    *(64, 80, 96, 128, 192, 256, 384, 512, 768, 1024),
)
"""Rényi orders: wider than Opacus' own, so that very weak and very strong noise get their best bound too."""


def installed() -> bool:
    """Whether Opacus can be asked."""
    return importlib.util.find_spec("opacus") is not None


def rdp_epsilon(noise_multiplier: float, sample_rate: float, steps: int, delta: float) -> float:
    """A bound by Rényi differential privacy [Mironov et al., 2019], computed by Opacus."""
    accountant = _accountants().RDPAccountant()
    accountant.history = [(noise_multiplier, sample_rate, steps)]
    with warnings.catch_warnings():
        # It warns where the best order is the first or the last: the bound holds at every order.
        warnings.simplefilter("ignore")
        return float(accountant.get_epsilon(delta=delta, alphas=list(ORDERS)))


def prv_epsilon(noise_multiplier: float, sample_rate: float, steps: int, delta: float) -> float:
    """An upper bound by privacy loss random variables [Gopi et al., 2021], computed by Opacus.

    Infinity where the noise is too weak for its numerical composition, which is a bound too.
    """
    accountant = _accountants().PRVAccountant()
    accountant.history = [(noise_multiplier, sample_rate, steps)]
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        try:
            epsilon = float(accountant.get_epsilon(delta=delta))
        except RuntimeError:  # its own check: the discrete and the continuous mean differ
            return math.inf
    return math.inf if math.isnan(epsilon) else epsilon


def _accountants() -> ModuleType:
    if not installed():
        raise UsageError(
            "The RDP and PRV accountants need the package opacus, which is not installed: pip install fedglass[dp]."
        )
    return importlib.import_module("opacus.accountants")
