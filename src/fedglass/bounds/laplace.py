"""Laplacian noise: the success that it allows, by Rényi divergences that add up over entries and rounds."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
ORDERS: Array = np.concatenate([np.arange(1.1, 8.0, 0.1), np.geomspace(8.0, 4096.0, 96)])
"""Orders at which divergences are taken: any of them gives a bound, and the best one is used."""


def laplace_renyi(shifts: Array) -> Array:
    """Return the Rényi divergences of independent Laplace laws that are moved by `shifts` scales, at all orders.

    R_a(s) = log(a / (2a - 1) exp((a - 1) s) + (a - 1) / (2a - 1) exp(-a s)) / (a - 1) [Mironov, 2017, Table II], summed
    over the entries.  # (d,) -> (orders,)

    >>> laplace_renyi(np.zeros(3)).max() < 1e-12
    np.True_
    """
    moved = np.abs(np.asarray(shifts, dtype=np.float64))
    total = np.zeros_like(ORDERS)
    with np.errstate(over="ignore"):  # an infinite divergence bounds nothing, and is right
        for i, order in enumerate(ORDERS):
            up = math.log(order / (2 * order - 1)) + (order - 1) * moved
            down = math.log((order - 1) / (2 * order - 1)) - order * moved
            total[i] = max(0.0, float(np.logaddexp(up, down).sum()) / (order - 1))
    return total


def renyi_success(base_rate: float, divergences: Sequence[float] | Array) -> float:
    """Return the success that such divergences allow: min over orders of (base_rate exp(R_a))^((a - 1) / a).

    By Hölder's inequality, P(S) <= (Q(S) exp(R_a(P | Q)))^((a - 1) / a) [van Erven and Harremoës, 2014].

    >>> round(renyi_success(0.001, laplace_renyi(np.zeros(5))), 4)
    0.001
    """
    exponent = (math.log(base_rate) + np.asarray(divergences)) * (ORDERS - 1) / ORDERS
    return math.exp(min(0.0, float(exponent.min())))
