"""Releases, which change an update as it leaves a client, and the protection that a client's defences make up."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, runtime_checkable

import torch

from fedglass.core.errors import UsageError
from fedglass.core.tensors import Params, Update
from fedglass.core.types import Filter
from fedglass.fl.local import GradientFn, MeanGradient


@dataclass(frozen=True, eq=False)
class Outgoing:
    """An update on its way out, and what a defence may use in addition; a new fact is a new field."""

    update: Update
    generator: torch.Generator
    """The source of a defence's random numbers."""
    round: int = 0
    before: Params | None = None
    """The global model that the client started from; None if `update` is something else, such as a gradient."""


@runtime_checkable
class Release(Protocol):
    """A change of the update that a client sends: clipping, noise, pruning."""

    def release(self, leaving: Outgoing) -> Update: ...


@dataclass(frozen=True)
class AsIs:
    """The update, unchanged."""

    def release(self, leaving: Outgoing) -> Update:
        return leaving.update


@dataclass(frozen=True)
class Chain:
    """One release after another."""

    releases: tuple[Release, ...]

    def release(self, leaving: Outgoing) -> Update:
        for part in self.releases:
            leaving = replace(leaving, update=part.release(leaving))
        return leaving.update

    def limits(self, low: Update, high: Update) -> tuple[Update, Update]:
        for part in reversed(self.releases):
            assert isinstance(part, Filter), "asked before"
            low, high = part.limits(low, high)
        return low, high


@dataclass(frozen=True)
class Protection:
    """All defences of a client: the gradient inside its local steps, and the release of its update."""

    gradient: GradientFn = field(default_factory=MeanGradient)
    release: Release = field(default_factory=AsIs)

    @classmethod
    def of(cls, parts: Sequence[GradientFn | Release]) -> Protection:
        """Compose defences: at most one gradient function, and releases one after another."""
        gradients = [part for part in parts if not isinstance(part, Release)]
        releases = [part for part in parts if isinstance(part, Release)]
        if len(gradients) > 1:
            raise UsageError(
                f"defences: at most one may change the gradient of a local step, got {len(gradients)}: keep one."
            )
        release = releases[0] if len(releases) == 1 else Chain(tuple(releases)) if releases else AsIs()
        return cls(gradients[0] if gradients else MeanGradient(), release)

    @property
    def filter(self) -> Filter | None:
        """The release as a filter; None where one of the defences leaves no limits, such as noise."""
        parts = self.release.releases if isinstance(self.release, Chain) else (self.release,)
        is_filter = parts and all(isinstance(part, Filter) and not isinstance(part, Chain) for part in parts)
        plain = self.gradient == MeanGradient()
        return self.release if is_filter and isinstance(self.release, Filter) and plain else None


def limits_of_zeros(low: Update, high: Update, most: float = math.inf) -> tuple[Update, Update]:
    """Widen the limits of entries that may have been set to zero; `most` is the largest size of such an entry.

    >>> sent = {"w": torch.tensor([0.0, -2.0, 3.0])}
    >>> limits_of_zeros(sent, sent, smallest_kept(sent, sent))[1]
    {'w': tensor([ 2., -2.,  3.])}
    """
    zeros = {name: (low[name] <= 0) & (high[name] >= 0) for name in low}
    return (
        {name: torch.where(zeros[name], low[name].clamp(max=-most), low[name]) for name in low},
        {name: torch.where(zeros[name], high[name].clamp(min=most), high[name]) for name in low},
    )


def smallest_kept(low: Update, high: Update) -> float:
    """Return the smallest size that an entry which is not zero may have had; those set to zero were no larger."""
    sizes = [torch.maximum(low[n].abs(), high[n].abs())[(low[n] > 0) | (high[n] < 0)].flatten() for n in low]
    smallest = torch.cat(sizes)
    return float(smallest.min()) if smallest.numel() else math.inf
