"""A client that follows the protocol."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from fedglass.core.params import Update
from fedglass.core.registry import register
from fedglass.rounds.behaviour.behaviour import Turn


@register("behaviours", "honest", summary="trains on its examples and sends what comes out")
@dataclass(frozen=True)
class Honest:
    """Trains on its own examples and sends what it trained."""

    def examples(self, turn: Turn) -> tuple[Tensor, Tensor]:
        return turn.images, turn.labels

    def update(self, turn: Turn, trained: Update) -> Update:
        return trained

    def describe(self) -> str:
        return ""
