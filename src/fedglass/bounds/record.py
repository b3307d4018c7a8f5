"""The certificate of single records where a message is a fixed map of the data plus Gaussian noise.

u_i is what is sent with the record i, c what would be sent with a fixed reference in its place, s the standard
deviation of noise that does not depend on the data. An adversary that names the record with probability kappa without
the message does so with probability Phi(Phi^-1(kappa) + mu_i) at most with it, mu_i = |u_i - c| / s (Neyman-Pearson).
Rounds add as mu^2 = sum of mu_r^2.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedglass.bounds.arguments import check_count, check_rate, check_size
from fedglass.bounds.success import combine_mu, gdp_advantage, gdp_success
from fedglass.core.errors import UsageError

BASE_RATE = 1e-3
"""Naming one record among 1,000: the unit of the verdict's interval."""


@dataclass(frozen=True)
class RecordBound:
    """What bounds the success against each audited record.

    >>> bound = RecordBound(mu=(0.5, 1.0), rounds=1)
    >>> bound.worst, round(bound.worst_success, 6)
    (1, 0.018298)
    """

    mu: tuple[float, ...]
    """Of each record, over all audited rounds."""
    base_rate: float = BASE_RATE
    rounds: int = 1
    """How many rounds the bound holds for."""

    def __post_init__(self) -> None:
        check_rate("base_rate", self.base_rate)
        check_count("rounds", self.rounds)
        if not self.mu:
            raise UsageError("A bound needs at least one record: give the distance of each audited record.")
        for mu in self.mu:
            check_size("mu", mu)

    @property
    def worst(self) -> int:
        """Return the position of the record that is bounded least."""
        return max(range(len(self.mu)), key=lambda record: self.mu[record])

    @property
    def worst_success(self) -> float:
        """Return the success against the worst record, which decides: a mean hides it."""
        return gdp_success(self.base_rate, self.mu[self.worst])

    @property
    def success(self) -> tuple[float, ...]:
        """Return the largest success against each record."""
        return tuple(gdp_success(self.base_rate, mu) for mu in self.mu)

    @property
    def advantage(self) -> tuple[float, ...]:
        """Return the largest membership advantage against each record."""
        return tuple(gdp_advantage(mu) for mu in self.mu)

    def projected(self, planned: int) -> RecordBound:
        """Return the bound over the planned rounds, if the others tell as much as the audited ones do on average.

        >>> RecordBound(mu=(1.0,), rounds=1).projected(4).mu
        (2.0,)
        """
        check_count("planned", planned)
        if planned <= self.rounds:
            return self
        grown = math.sqrt(planned / self.rounds)
        return replace(self, mu=tuple(mu * grown for mu in self.mu), rounds=planned)

    def outlook(self, planned: int) -> str:
        """Return the sentence that says how long the bound holds.

        >>> RecordBound(mu=(1.0,), rounds=1).outlook(4)
        'The bound 0.0183 holds for 1 round; at the planned 4 rounds it is 0.138.'
        """
        held = f"The bound {self.worst_success:.3g} holds for {self.rounds} round{'s' if self.rounds > 1 else ''}"
        if planned <= self.rounds:
            return f"{held}."
        return f"{held}; at the planned {planned} rounds it is {self.projected(planned).worst_success:.3g}."


def record_bound(distances: ArrayLike, noise_stds: Sequence[float], base_rate: float = BASE_RATE) -> RecordBound:
    """Return the bound of each record from its distances |u_i - c|.  # (rounds, records)

    Without noise a record is hidden only where its message is the reference's own.

    >>> record_bound([[3.0, 0.0], [8.0, 0.0]], noise_stds=[1.0, 2.0]).mu
    (5.0, 0.0)
    """
    known: NDArray[np.float64] = np.asarray(distances, dtype=np.float64)
    if known.ndim != 2 or len(known) != len(noise_stds):
        raise UsageError(
            f"A record's bound needs one row of distances per round and one noise per round, got the shape "
            f"{known.shape} and {len(noise_stds)}."
        )
    rounds = [[_mu(float(each), std) for each in row] for row, std in zip(known, noise_stds, strict=True)]
    return RecordBound(tuple(combine_mu(of) for of in zip(*rounds, strict=True)), base_rate, len(known))


def _mu(distance: float, std: float) -> float:
    check_size("distance", distance)
    check_size("noise_std", std)
    if distance == 0:
        return 0.0
    return math.inf if std == 0 else distance / std
