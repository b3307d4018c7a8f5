"""The epsilon that a defence declares, next to the one that its clipping, its noise and its releases give."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from fedglass.bounds.success import combine_mu, gdp_epsilon
from fedglass.core.types import Training
from fedglass.defend.filters import FlowerLocalDP, SVTPrivacy
from fedglass.defend.noise_model import NoiseModel, named_parts, noise_model
from fedglass.fl.release import Protection, Release

SLACK = 1e-3
"""The share by which two accountants may differ: they round differently."""


@dataclass(frozen=True)
class EpsilonClaim:
    """What a defence or an accountant says of epsilon, and what it is."""

    source: str
    """Who says so."""
    declared: float
    real: float
    """Over all releases, at the same delta."""
    delta: float
    releases: int
    why: str
    """How the real one comes about, as the end of a sentence."""

    @property
    def exceeded(self) -> bool:
        """True if less privacy is left than was declared."""
        return self.real > self.declared * (1 + SLACK)

    @property
    def details(self) -> dict[str, str | float]:
        """The details of a doubt about it; infinity has no number in JSON."""
        real = self.real if math.isfinite(self.real) else "infinite"
        return {"filter": self.source, "declared": self.declared, "real": real, "why": self.why}

    def __str__(self) -> str:
        times = "1 release" if self.releases == 1 else f"{self.releases} releases"
        return (
            f"{self.source} declares epsilon {self.declared:.3g} at delta {self.delta:g}; over {times} it is "
            f"{self.real:.3g}, because {self.why}."
        )


def epsilon_claims(release: Release, releases: int, entries: int) -> Iterator[EpsilonClaim]:
    """Yield the declared epsilons of a client's release, next to those of so many messages with so many entries.

    >>> flip = FlowerLocalDP(clipping_norm=1.0, sensitivity=1e-4, epsilon=10.0, delta=1e-5)
    >>> [f"{claim.real:.2g}" for claim in epsilon_claims(flip, 1, 100)]
    ['2.1e+08']
    """
    for part in named_parts(release):
        if isinstance(part, FlowerLocalDP):
            yield from _of_local_dp(part, release, releases)
        elif isinstance(part, SVTPrivacy):
            spent = part.spent(entries)
            why = f"the values that it sends cost {part.release_budget(entries):.3g} in each release"
            yield EpsilonClaim(repr(part), part.epsilon, spent * releases, 0.0, releases, why)


def _of_local_dp(part: FlowerLocalDP, release: Release, releases: int) -> Iterator[EpsilonClaim]:
    model = noise_model(Protection(release=release), Training(lr=1.0), 1)
    if isinstance(model, NoiseModel) and model.per_round is not None:
        mu = combine_mu([model.per_round] * releases)
        why = f"the norm {part.clipping_norm:g} and noise of standard deviation {model.std:.3g} give mu = {mu:.3g}"
        yield EpsilonClaim(repr(part), part.epsilon, gdp_epsilon(mu, part.delta), part.delta, releases, why)
    elif part.std == 0:
        yield EpsilonClaim(repr(part), part.epsilon, math.inf, part.delta, releases, "it adds no noise")
