"""What happens to an update as it leaves a client."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

from fedglass.core.params import Update


class Release(Protocol):
    """Changes the update that a client sends: clipping, noise, pruning, poisoning."""

    def release(self, update: Update, generator: torch.Generator) -> Update: ...


@dataclass(frozen=True)
class AsIs:
    """The update, unchanged."""

    def release(self, update: Update, generator: torch.Generator) -> Update:
        return update


@dataclass(frozen=True)
class Chain:
    """One release after another."""

    releases: tuple[Release, ...]

    def release(self, update: Update, generator: torch.Generator) -> Update:
        for part in self.releases:
            update = part.release(update, generator)
        return update
