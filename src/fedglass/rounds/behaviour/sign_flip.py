"""A poisoner that walks backwards."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from fedglass.core.params import Update
from fedglass.core.registry import register
from fedglass.rounds.behaviour.behaviour import Turn


@register(
    "behaviours",
    "sign_flip",
    summary="sends its update with the sign flipped, times a factor",
    paper=(
        "Li, Xu, Chen, Giannakis, Ling: RSA: Byzantine-Robust Stochastic Aggregation Methods, AAAI 2019, "
        "https://arxiv.org/abs/1811.03761"
    ),
)
@dataclass(frozen=True)
class SignFlip:
    """Sends -factor * u in place of its update u [Li et al., 2019, RSA]."""

    factor: float = 1.0

    def examples(self, turn: Turn) -> tuple[Tensor, Tensor]:
        return turn.images, turn.labels

    def update(self, turn: Turn, trained: Update) -> Update:
        return {name: -self.factor * tensor for name, tensor in trained.items()}

    def describe(self) -> str:
        return f"sends its update with the sign flipped, times {self.factor:g}"
