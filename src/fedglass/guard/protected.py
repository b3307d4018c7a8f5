"""What is declared to protect a client's updates, and the same without its noise."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from fedglass.core.errors import UsageError
from fedglass.core.params import Update
from fedglass.defend.clip import Clip as ClipAll
from fedglass.defend.dpsgd import DPSGD
from fedglass.defend.gaussian_noise import GaussianNoise
from fedglass.fl.local import GradientFn, MeanGradient
from fedglass.fl.protection import Protection
from fedglass.fl.release import Chain, Outgoing, Release
from fedglass.guard.structure import Clip


@dataclass(frozen=True)
class ClipEach:
    """Each tensor scaled down to a norm of its own."""

    norms: Mapping[str, float]

    def release(self, leaving: Outgoing) -> Update:
        sent: dict[str, Update] = {
            name: ClipAll(self.norms[name]).release(replace(leaving, update={name: tensor}))
            for name, tensor in leaving.update.items()
        }
        return {name: each[name] for name, each in sent.items()}


@dataclass(frozen=True)
class Protected:
    """Clipping and Gaussian noise of the update as it leaves, and those inside of local steps."""

    clip: Clip | None = None
    noise_multiplier: float = 0.0
    """Of the update: the noise's deviation at every entry, in units of the clipping norm."""
    dpsgd: DPSGD | None = None

    def __post_init__(self) -> None:
        bounds = self.clip.values() if isinstance(self.clip, Mapping) else [] if self.clip is None else [self.clip]
        for bound in bounds:
            ClipAll(bound)  # which refuses what is no norm
        GaussianNoise(self.noise_multiplier)
        if self.noise_multiplier > 0 and not isinstance(self.clip, int | float):
            raise UsageError(
                f"Guard.noise_multiplier is in units of one clipping norm, got clip={self.clip!r}: give a number."
            )

    @property
    def noisy(self) -> bool:
        return self.std > 0 or (self.dpsgd is not None and self.dpsgd.noise_multiplier > 0)

    @property
    def std(self) -> float:
        """Of the noise that is added to the update as it leaves."""
        return self.noise_multiplier * self.clip if isinstance(self.clip, int | float) else 0.0

    @property
    def protection(self) -> Protection:
        """As declared, to be played again."""
        parts = self._clipping() + ([GaussianNoise(self.std)] if self.std > 0 else [])
        return Protection(self.dpsgd or MeanGradient(), Chain(tuple(parts))) if parts else self._within(self.dpsgd)

    @property
    def noiseless(self) -> Protection:
        """The same clipping alone: what the noise is added to."""
        quiet = None if self.dpsgd is None else replace(self.dpsgd, noise_multiplier=0.0)
        parts = self._clipping()
        return Protection(quiet or MeanGradient(), Chain(tuple(parts))) if parts else self._within(quiet)

    @staticmethod
    def _within(gradient: GradientFn | None) -> Protection:
        return Protection() if gradient is None else Protection(gradient)

    def _clipping(self) -> list[Release]:
        if self.clip is None:
            return []
        return [ClipEach(self.clip) if isinstance(self.clip, Mapping) else ClipAll(float(self.clip))]
