"""The noise that a protection adds, where it has a bound: a deterministic map, then noise independent of the data.

Only built-in parts are known well enough for a bound. Post-processing that does not look at the data keeps every bound.
User-defined parts, noise with a size or a place that depends on the data, and noise that repeats have no bound.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Literal

from fedglass.core.optimisers import SGD
from fedglass.core.types import Training
from fedglass.defend.accounting import Mechanism
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
