"""The two sets of weights that the authors of Data Leakage in Federated Averaging tuned, as released."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fedglass.attack.solvers.schedules import ExponentialDecay
from fedglass.attack.terms.clip import ClipPenalty
from fedglass.attack.terms.epoch_prior import ConvMax, Mean, SquaredEpochPrior, Summary
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

    def prior(self) -> Term:
        return self.inv * SquaredEpochPrior(self.summary)


SETTINGS: Mapping[str, Setting] = {
    "femnist": Setting(0.001, 2.0, 1000.0, Mean(), 0.4, ExponentialDecay(0.995, 10), (1.0, 2.0)),
    "cifar100": Setting(0.0002, 10.0, 6.075, ConvMax(), 0.1, ExponentialDecay(0.997, 20), (4.0, 2.0)),
}


def settings(name: str) -> Setting:
    """The setting of that name, or an error with the nearest one."""
    if name not in SETTINGS:
        raise unknown_name("setting", name, SETTINGS)
    return SETTINGS[name]
