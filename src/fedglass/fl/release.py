"""Releases, which change an update as it leaves a client, and the protection that a client's defences make up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, runtime_checkable

import torch

from fedglass.core.errors import UsageError
from fedglass.core.tensors import Params, Update
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
