"""What happens to an update as it leaves a client."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import torch

from fedglass.core.params import Params, Update


@dataclass(frozen=True, eq=False)
class Outgoing:
    """An update on its way out, and what a defence may use beside it; a new fact is a new field."""

    update: Update
    generator: torch.Generator
    """The source of a defence's random numbers."""
    round: int = 0
    before: Params | None = None
    """The global model that the client started from; None for what is no update, such as one example's gradient."""


@runtime_checkable
class Release(Protocol):
    """Changes the update that a client sends: clipping, noise, pruning."""

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
