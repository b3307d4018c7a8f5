"""A poisoner that sends noise."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from fedglass.core.errors import UsageError
from fedglass.core.params import Update
from fedglass.core.registry import register
from fedglass.fl.aggregate.krum import BLANCHARD
from fedglass.rounds.behaviour.behaviour import Turn


@register(
    "behaviours", "gaussian", summary="sends Gaussian noise in place of its update, as long as asked", paper=BLANCHARD
)
@dataclass(frozen=True)
class Gaussian:
    """Sends N(0, std^2) in each coordinate in place of its update [Blanchard et al., 2017, Sec. 5].

    Without `std` the noise is as long as the update that it stands for: papers leave its size open, and one that is
    fixed in weights is a whisper in one network and a shout in another.
    """

    std: float | None = None

    def __post_init__(self) -> None:
        if self.std is not None and not 0 < self.std < math.inf:
            raise UsageError(f"Behaviour 'gaussian': std must be positive and finite, got {self.std}.")

    def examples(self, turn: Turn) -> tuple[Tensor, Tensor]:
        return turn.images, turn.labels

    def update(self, turn: Turn, trained: Update) -> Update:
        size = sum(tensor.numel() for tensor in trained.values())
        length = math.sqrt(sum(float(tensor.double().square().sum()) for tensor in trained.values()))
        std = length / math.sqrt(size) if self.std is None else self.std
        return {
            name: std * torch.randn(tensor.shape, generator=turn.generator, dtype=tensor.dtype)
            for name, tensor in trained.items()
        }

    def describe(self) -> str:
        size = "as long as its update" if self.std is None else f"of standard deviation {self.std:g}"
        return f"sends Gaussian noise {size} in its place"
