"""The noise that a protection adds, where it has a bound: a deterministic map, then noise independent of the data.

Only built-in parts are known well enough for a bound. Post-processing that does not look at the data keeps every bound.
User-defined parts, noise with a size or a place that depends on the data, and noise that repeats have no bound.

The epsilon that a defence declares, next to the one that its clipping, its noise and its releases give.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Literal

from fedglass.bounds.success import combine_mu, gdp_epsilon
from fedglass.core.optimisers import SGD
from fedglass.core.types import Training
from fedglass.defend.accounting import DELTA, Mechanism, composed_epsilon
from fedglass.defend.dpsgd import DPSGD, PoissonDPSGD
from fedglass.defend.filters import FlowerFixedClipping, FlowerLocalDP, PercentilePrivacy, SVTPrivacy
from fedglass.defend.noise import Clip, GaussianNoise, LaplacianNoise
from fedglass.defend.per_example import PerExample
from fedglass.defend.pruning import MagnitudePruning, RandomPruning
from fedglass.fl.local import MeanGradient
from fedglass.fl.release import AsIs, Chain, Protection, Release

CLIPS = (Clip, FlowerFixedClipping)
RANDOM = (RandomPruning, SVTPrivacy)
"""Parts that are random themselves, and have no bound if noise is added only afterwards."""
POST_PROCESSING: tuple[type, ...] = (
    *CLIPS,
    *RANDOM,
    MagnitudePruning,
    PercentilePrivacy,
    GaussianNoise,
    LaplacianNoise,
)
"""Post-processing that keeps a bound: none of these parts looks at the data."""
Law = Literal["gaussian", "laplacian"]


@dataclass(frozen=True)
class NoiseModel:
    """Noise that a client adds to what a deterministic map makes of its data."""

    law: Law
    std: float
    """Standard deviation at every entry of the update; of several noisy steps it is not known, and 0."""
    plain: Protection
    """The deterministic map alone: the protection without its noise."""
    per_round: float | None = None
    """The largest distance that one record makes in one round, for any data, in units of the Gaussian noise."""
    testable: bool = True
    """Whether the message is the deterministic map's result plus the noise, so that a residual shows it."""
    additive: bool = True
    """False for several noisy local steps, which only the accountant bounds."""
    samples: Mechanism | None = None
    """The steps of one round, if each draws a Poisson sample of all examples, which amplifies privacy."""


@dataclass(frozen=True)
class NoBound:
    """Why a protection has no bound."""

    defence: str
    """The defence in question; empty if there is no noise at all."""
    why: Literal["", "own", "repeats", "mixed", "steps", "place", "adaptive"] = ""


def noise_model(protection: Protection, training: Training, examples: int) -> NoiseModel | NoBound:
    """Return the noise of a protection of such a training, or the reason why it has no bound."""
    release = release_parts(protection.release)
    inside = _inside(protection, training, examples)
    if isinstance(inside, NoBound):
        return inside if inside.defence else _released(protection, release)
    unknown = _unknown_part(release)
    if unknown is not None:
        return NoBound(repr(unknown), "own")
    return replace(inside, testable=False) if release else inside


def _inside(protection: Protection, training: Training, examples: int) -> NoiseModel | NoBound:
    """Return the noise that is added inside the local steps."""
    gradient, steps = protection.gradient, training.local_steps(examples)
    if type(gradient) is MeanGradient:
        return NoBound("")
    size = examples if training.batch_size is None else min(training.batch_size, examples)
    linear = isinstance(training.optimiser, SGD) and not training.optimiser.nesterov and training.clip is None
    if type(gradient) in (DPSGD, PoissonDPSGD):
        assert isinstance(gradient, DPSGD), "one of these types"
        if gradient.noise_multiplier == 0:
            return NoBound("")
        bound = math.sqrt(training.passes(examples)) / gradient.noise_multiplier
        plain = replace(protection, gradient=replace(gradient, noise_multiplier=0.0))
        if isinstance(gradient, PoissonDPSGD):
            samples = Mechanism(gradient.noise_multiplier, gradient.sample_rate, steps) if size == examples else None
            return NoiseModel("gaussian", 0.0, plain, bound, testable=False, additive=False, samples=samples)
        if steps > 1 or not linear:
            return NoiseModel("gaussian", 0.0, plain, bound, testable=False, additive=False)
        std = training.lr * gradient.noise_multiplier * gradient.clip / gradient.divisor(size)
        return NoiseModel("gaussian", std, plain, bound)
    if type(gradient) is PerExample and type(gradient.defence) is GaussianNoise:
        if steps > 1 or not linear:
            return NoBound(repr(gradient), "steps")
        std = training.lr * gradient.defence.std / math.sqrt(size)
        return NoiseModel("gaussian", std, replace(protection, gradient=MeanGradient())) if std else NoBound("")
    return NoBound(repr(gradient), "own")


def _released(protection: Protection, parts: Sequence[Release]) -> NoiseModel | NoBound:
    """Return the noise that is added to the update as it leaves."""
    unknown = _unknown_part(parts)
    if unknown is not None:
        return NoBound(repr(unknown), "own")
    place = next((i for i, part in enumerate(parts) if _std_of(part) > 0), None)
    adaptive = next((p for p in parts[:place] if isinstance(p, FlowerFixedClipping) and p.adaptive), None)
    if adaptive is not None:
        return NoBound(repr(adaptive), "adaptive")
    if place is None:
        sparse = next((part for part in parts if isinstance(part, SVTPrivacy)), None)
        return NoBound("") if sparse is None else NoBound(repr(sparse), "place")
    before, noise = parts[:place], parts[place]
    random = next((part for part in before if type(part) in RANDOM), None)
    if random is not None:
        return NoBound(repr(random), "mixed")
    law: Law = "gaussian" if type(noise) is GaussianNoise else "laplacian"
    run = [noise]
    if law == "gaussian":
        run += takewhile(lambda part: type(part) is GaussianNoise, parts[place + 1 :])
    std = math.hypot(*map(_std_of, run))
    norms = [part.norm for part in before if isinstance(part, CLIPS)]
    bound = min(norms) / std if norms and law == "gaussian" else None
    plain = replace(protection, release=Chain(tuple(before)) if before else AsIs())
    return NoiseModel(law, std, plain, bound, testable=place + len(run) == len(parts))


def _unknown_part(parts: Sequence[Release]) -> Release | None:
    """Return the first part that may look at the data."""
    return next((part for part in parts if type(part) not in POST_PROCESSING), None)


def _std_of(part: Release) -> float:
    """Return the standard deviation that a part adds; 0 for one that adds no noise."""
    if isinstance(part, GaussianNoise):
        return part.std
    return math.sqrt(2) * part.scale if isinstance(part, LaplacianNoise) else 0.0


def release_parts(release: Release) -> list[Release]:
    """Return the parts of a release, in the order in which they change the update; Flower's noise as two parts."""
    parts: list[Release] = []
    for part in named_parts(release):
        parts += part.parts if type(part) is FlowerLocalDP else [part]
    return parts


def named_parts(release: Release) -> list[Release]:
    """Return the parts of a release as they are declared, in the order in which they change the update."""
    if isinstance(release, Chain):
        return [part for inner in release.releases for part in named_parts(inner)]
    return [] if isinstance(release, AsIs) else [release]


ACCOUNTANT = "the history of Opacus's accountant"
SLACK = 1e-3
"""The share by which two accountants may differ: they round differently."""


@dataclass(frozen=True)
class EpsilonClaim:
    """The epsilon that a defence or an accountant declares, and the real one."""

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
