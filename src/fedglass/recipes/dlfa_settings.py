"""The two sets of weights that the authors of Data Leakage in Federated Averaging tuned, as released."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fedglass.attack.solvers.schedules import ExponentialDecay
from fedglass.attack.terms.clip import ClipPenalty
from fedglass.attack.terms.epoch_prior import (
    AbsoluteEpochPrior,
    ConvMax,
    ConvMean,
    Max,
    Mean,
    SquaredEpochPrior,
    Summary,
)
from fedglass.attack.terms.term import Term
from fedglass.attack.terms.total_variation import CircularTotalVariation
from fedglass.core.errors import unknown_name


@dataclass(frozen=True)
class Setting:
    """Weights, rate and decay for one data set."""

    tv: float
    clip: float
    inv: float
    summary: Summary
    rate: float
    decay: ExponentialDecay
    ramp: tuple[float, float]
    """The distance's weight at the start and after the first 200 iterations."""

    def priors(self) -> Term:
        return self.tv * CircularTotalVariation() + self.clip * ClipPenalty()


SETTINGS: Mapping[str, Setting] = {
    "femnist": Setting(0.001, 2.0, 1000.0, Mean(), 0.4, ExponentialDecay(0.995, 10), (1.0, 2.0)),
    "cifar100": Setting(0.0002, 10.0, 6.075, ConvMax(), 0.1, ExponentialDecay(0.997, 20), (4.0, 2.0)),
}


def settings(name: str) -> Setting:
    """The setting of that name, or an error with the nearest one."""
    if name not in SETTINGS:
        raise unknown_name("setting", name, SETTINGS)
    return SETTINGS[name]


SUMMARIES: Mapping[str, Summary] = {"mean": Mean(), "max": Max(), "conv_mean": ConvMean(), "conv_max": ConvMax()}
DISTANCES = {"l1": AbsoluteEpochPrior, "l2": SquaredEpochPrior}
PRIOR_WEIGHTS: Mapping[tuple[str, str], Mapping[str, float]] = {
    ("femnist", "l1"): {"max": 77.298, "conv_max": 81.365, "mean": 250.846, "conv_mean": 263.623},
    ("femnist", "l2"): {"max": 92.378, "conv_max": 97.776, "mean": 1000.0, "conv_mean": 1054.413},
    ("cifar100", "l1"): {"max": 4.848, "conv_max": 5.0, "mean": 15.708, "conv_mean": 16.206},
    ("cifar100", "l2"): {"max": 5.814, "conv_max": 6.075, "mean": 62.675, "conv_mean": 65.573},
}
"""Of the priors of Table 4, as released: setting and distance, then summary."""


def epoch_prior(setting: str, summary: str | None = None, distance: str | None = None) -> Term:
    """A prior of Table 4 with its released weight; what is left out is the setting's own, a squared difference.

    >>> epoch_prior("femnist"), epoch_prior("femnist", "max", "l1")
    (1000.0 * SquaredEpochPrior(summary=Mean()), 77.298 * AbsoluteEpochPrior(summary=Max()))
    """
    own = next(name for name, part in SUMMARIES.items() if part == settings(setting).summary)
    summary, distance = own if summary is None else summary, "l2" if distance is None else distance
    if summary not in SUMMARIES:
        raise unknown_name("summary", summary, SUMMARIES)
    if distance not in DISTANCES:
        raise unknown_name("distance", distance, DISTANCES)
    return PRIOR_WEIGHTS[setting, distance][summary] * DISTANCES[distance](SUMMARIES[summary])
