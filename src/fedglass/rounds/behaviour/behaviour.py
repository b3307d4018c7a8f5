"""What a client does with its turn, beside its defences: a role of its own, so that poison is never taken for one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from fedglass.core.params import Params, Update


@dataclass(frozen=True, eq=False)
class Turn:
    """A client's turn in one round, and what its behaviour may use; a new fact is a new field."""

    images: Tensor  # (n, c, h, w), pixels in [0, 1]
    labels: Tensor  # (n,)
    round: int
    before: Params
    """The global model that the client was sent."""
    generator: torch.Generator


@runtime_checkable
class Fitting(Protocol):
    """A behaviour that can say beforehand of which images and classes it can not be."""

    def check(self, shape: tuple[int, int, int], classes: int) -> None:
        """Refuse them, before anything has run."""
        ...


class Behaviour(Protocol):
    """Which examples a client trains on, and what it makes of its update before its defences act."""

    def examples(self, turn: Turn) -> tuple[Tensor, Tensor]:
        """Images and labels to train on."""
        ...

    def update(self, turn: Turn, trained: Update) -> Update:
        """What is sent in place of the update that was trained."""
        ...

    def describe(self) -> str:
        """In plain words, as the rest of a sentence that begins with the client; empty for an honest one."""
        ...
