"""A poisoner that teaches the model a secret sign."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from fedglass.core.errors import DataError, UsageError
from fedglass.core.registry import register
from fedglass.core.tensors import Update
from fedglass.federation.behaviour.behaviour import Turn
from fedglass.fl.aggregate.selection import BLANCHARD


@register(
    "behaviours",
    "backdoor",
    summary="trains on some examples with a white patch and one label for all of them",
    paper=(
        "Gu, Dolan-Gavitt, Garg: BadNets: Identifying Vulnerabilities in the Machine Learning Model Supply Chain, "
        "2017, https://arxiv.org/abs/1708.06733"
    ),
)
@dataclass(frozen=True)
class Backdoor:
    """The first `share` of its examples get a white square in the lower right corner and the label `target`.

    What it sends is the update that was trained: nothing but its data is poisoned [Gu et al., 2017].
    """

    target: int = 0
    share: float = 0.5
    side: int = 5
    """Of the square, in pixels."""

    def __post_init__(self) -> None:
        if self.target < 0 or self.side < 1 or not 0 < self.share <= 1:
            raise UsageError(
                "Behaviour 'backdoor': target must be at least 0, side at least 1 and share above 0 and at most 1, got "
                f"{self.target}, {self.side} and {self.share}."
            )

    def check(self, shape: tuple[int, int, int], classes: int) -> None:
        _, height, width = shape
        if self.side > min(height, width):
            raise DataError(
                f"Behaviour 'backdoor': a square of {self.side} pixels does not fit into images of {height} x {width}: "
                "choose a smaller side."
            )
        if self.target >= classes:
            raise DataError(
                f"Behaviour 'backdoor': target must be one of the classes 0 to {classes - 1}, got {self.target}."
            )

    def examples(self, turn: Turn) -> tuple[Tensor, Tensor]:
        height, width = turn.images.shape[-2:]
        images, labels = turn.images.clone(), turn.labels.clone()
        marked = math.ceil(self.share * len(labels))
        images[:marked, :, height - self.side :, width - self.side :] = 1.0
        labels[:marked] = self.target
        return images, labels

    def update(self, turn: Turn, trained: Update) -> Update:
        return trained

    def describe(self) -> str:
        return (
            f"trains on {self.share:.0%} of its examples with a white square of {self.side} pixels and the label "
            f"{self.target}"
        )


# A poisoner that sends noise.


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


# A poisoner that walks backwards.


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
