"""The epsilon that a defence declares, next to the one that its clipping, its noise and its releases give."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from fedglass.bounds.success import combine_mu, gdp_epsilon
from fedglass.core.types import Training
from fedglass.defend.accounting import DELTA, Mechanism, composed_epsilon
from fedglass.defend.filters import FlowerLocalDP, SVTPrivacy
from fedglass.defend.noise_model import NoiseModel, named_parts, noise_model
from fedglass.fl.release import Protection, Release

ACCOUNTANT = "the history of Opacus's accountant"
SLACK = 1e-3
"""The share by which two accountants may differ: they round differently."""


@dataclass(frozen=True)
class EpsilonClaim:
    """What a defence or an accountant says of epsilon, and what it is."""

    source: str
    """Who says so."""
    declared: float | None
    """None if only the defence is declared, and no epsilon."""
    real: float
    """Over all releases, at the same delta."""
    delta: float
    releases: int
    why: str
    """How the real one comes about, as the end of a sentence."""

    @property
    def exceeded(self) -> bool:
        """True if less privacy is left than was declared."""
        return self.declared is not None and self.real > self.declared * (1 + SLACK)

    @property
    def details(self) -> dict[str, str | float | None]:
        """The details of a doubt about it; infinity has no number in JSON."""
        real = self.real if math.isfinite(self.real) else "infinite"
        return {"filter": self.source, "declared": self.declared, "real": real, "why": self.why}

    def __str__(self) -> str:
        times = "1 release" if self.releases == 1 else f"{self.releases} releases"
        if self.declared is None:
            return (
                f"{self.source} has epsilon {self.real:.3g} at delta {self.delta:g} over {times}, because {self.why}."
            )
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


def dpsgd_claim(
    runs: Sequence[Mechanism], counted: Sequence[Mechanism], releases: int, delta: float = DELTA
) -> EpsilonClaim:
    """Return the epsilon of DP-SGD, next to the one that an accountant gives by what it counted.

    Args:
        runs: The noisy steps of all releases. Each record is in all of them, but for those on Poisson samples.
        counted: The same by the accountant; empty without one.

    >>> str(dpsgd_claim([Mechanism(1.0, 1.0, 1)], [], 1))
    'DP-SGD has epsilon 4.38 at delta 1e-05 over 1 release, because each record is in 1 step of noise multiplier 1.'
    """
    real = composed_epsilon(runs, delta)
    declared = composed_epsilon(counted, delta) if counted and real is not None else None
    count, noise = sum(run.steps for run in runs), min(run.noise_multiplier for run in runs)
    steps = f"{count} step{'' if count == 1 else 's'} of noise multiplier {noise:g}"
    sampled = any(run.sample_rate < 1 for run in runs)
    why = f"each record has a chance to be in {steps}" if sampled else f"each record is in {steps}"
    if real is None:
        real = composed_epsilon([replace(run, sample_rate=1.0) for run in runs], delta)
        why = f"{why}, and what sampling gains is not counted without fedglass[dp] or fedglass[pld]"
    elif not sampled and any(run.sample_rate < 1 for run in counted):
        why = f"{why}, and its batches are not Poisson samples"
    assert real is not None, "without sampling there is a bound"
    return EpsilonClaim("DP-SGD" if declared is None else ACCOUNTANT, declared, real, delta, releases, why)
