"""The losses that a plan can name. Each computes what the torch function of its name does.

A mean is taken over the examples and, where there are several outputs, over these too, as torch does. The default of a
training is the mean cross entropy.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from fedglass.core.errors import UsageError
from fedglass.core.losses import TargetKind
from fedglass.core.registry import register

IGNORE_NOTHING = -100
"""The class that torch ignores by default; no example has it."""


def _check_options(name: str, options: Mapping[str, Any]) -> None:
    """Refuse options of a loss that are out of range; each loss has some of these."""
    smoothing, index = options.get("label_smoothing", 0.0), options.get("ignore_index", IGNORE_NOTHING)
    if not 0 <= smoothing < 1:
        raise UsageError(f"loss {name!r}: label_smoothing must be at least 0 and below 1, got {smoothing}.")
    for option in ("weight", "pos_weight"):
        weights = options.get(option)
        if weights is not None and (not weights or not all(0 <= w < math.inf for w in weights) or not any(weights)):
            raise UsageError(f"loss {name!r}: {option} must be finite numbers of at least 0, not all 0, got {weights}.")
    if not 0 < options.get("smooth", 1.0) < math.inf:
        raise UsageError(f"loss {name!r}: smooth must be positive and finite, got {options['smooth']}.")
    if options["reduction"] not in ("mean", "sum"):
        raise UsageError(f'loss {name!r}: reduction must be "mean" or "sum", got {options["reduction"]!r}.')
    if not isinstance(index, int):
        raise UsageError(f"loss {name!r}: ignore_index must be a whole number, got {index!r}.")


def _weights(name: str, weights: Sequence[float] | None, outputs: Tensor) -> Tensor | None:
    if weights is None:
        return None
    if len(weights) != outputs.shape[1]:
        raise UsageError(
            f"loss {name!r}: expected one weight for each of the {outputs.shape[1]} outputs of the network, got "
            f"{len(weights)}: correct the weights or the number of classes."
        )
    return outputs.new_tensor(weights)


@register("losses", "cross_entropy", summary="cross entropy of one class for each example")
@dataclass(frozen=True)
class CrossEntropy:
    """-log softmax(outputs)[class], with smoothed labels, weights of classes and a class that is ignored.

    Probabilities of the classes are targets too, as attacks search for them. The loss of one-hot rows is that of their
    classes: the mean is over the weights of the classes, where torch divides by the number of examples.
    """

    label_smoothing: float = 0.0
    weight: tuple[float, ...] | None = None
    ignore_index: int = IGNORE_NOTHING
    reduction: str = "mean"

    targets: ClassVar[TargetKind] = TargetKind.CLASSES

    def __post_init__(self) -> None:
        _check_options("cross_entropy", vars(self))

    def value(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return _cross_entropy(self, "cross_entropy", outputs, targets)


@register("losses", "pixel_cross_entropy", summary="cross entropy of one class for each pixel, for segmentation")
@dataclass(frozen=True)
class PixelCrossEntropy:
    """The cross entropy at each pixel, with the options of `cross_entropy`.  # (n, classes, h, w), (n, h, w)"""

    label_smoothing: float = 0.0
    weight: tuple[float, ...] | None = None
    ignore_index: int = IGNORE_NOTHING
    reduction: str = "mean"

    targets: ClassVar[TargetKind] = TargetKind.PIXELS

    def __post_init__(self) -> None:
        _check_options("pixel_cross_entropy", vars(self))

    def value(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return _cross_entropy(self, "pixel_cross_entropy", outputs, targets)


def _cross_entropy(loss: CrossEntropy | PixelCrossEntropy, name: str, outputs: Tensor, targets: Tensor) -> Tensor:
    weight, ignored = _weights(name, loss.weight, outputs), loss.ignore_index
    soft, ignores = targets.is_floating_point(), 0 <= loss.ignore_index < outputs.shape[1]
    if soft and (ignores or weight is not None):
        return _soft_cross_entropy(loss, outputs, targets, weight)
    return F.cross_entropy(
        outputs,
        targets,
        weight=weight,
        ignore_index=IGNORE_NOTHING if soft else ignored,
        reduction=loss.reduction,
        label_smoothing=loss.label_smoothing,
    )


def _soft_cross_entropy(
    loss: CrossEntropy | PixelCrossEntropy, outputs: Tensor, targets: Tensor, weight: Tensor | None
) -> Tensor:
    """Return the loss of probabilities of classes with weights, or with one class that is ignored.

    The other classes share what the ignored class has; a row that has nothing else does not count.
    """
    classes = torch.arange(outputs.shape[1], device=outputs.device).view(-1, *[1] * (outputs.ndim - 2))
    used = targets * (classes != loss.ignore_index)
    total = used.sum(1, keepdim=True)
    counts = (total > 0).to(outputs)
    shares = used / total.where(total > 0, torch.ones_like(total))
    weights = torch.ones_like(classes, dtype=outputs.dtype) if weight is None else weight.view_as(classes)
    smoothed = (1 - loss.label_smoothing) * shares + loss.label_smoothing / outputs.shape[1] * counts
    value = -(weights * smoothed * outputs.log_softmax(1)).sum()
    return value / (weights * shares).sum() if loss.reduction == "mean" else value


@register(
    "losses",
    "binary_cross_entropy_with_logits",
    summary="binary cross entropy of each output, for several labels of an example",
)
@dataclass(frozen=True)
class BinaryCrossEntropy:
    """-y log sigmoid(z) - (1 - y) log(1 - sigmoid(z)) of each output z with its target y in [0, 1]."""

    weight: tuple[float, ...] | None = None
    pos_weight: tuple[float, ...] | None = None
    reduction: str = "mean"

    targets: ClassVar[TargetKind] = TargetKind.SHARES
    affine: ClassVar[bool] = True
    """The gradient of the outputs is affine in the targets, each output for itself."""

    def __post_init__(self) -> None:
        _check_options("binary_cross_entropy_with_logits", vars(self))

    def value(self, outputs: Tensor, targets: Tensor) -> Tensor:
        name = "binary_cross_entropy_with_logits"
        return F.binary_cross_entropy_with_logits(
            outputs,
            targets,
            weight=_weights(name, self.weight, outputs),
            pos_weight=_weights(name, self.pos_weight, outputs),
            reduction=self.reduction,
        )


@register("losses", "mse_loss", summary="squared error of each output, for regression")
@dataclass(frozen=True)
class SquaredLoss:
    """(z - y)^2 of each output z with its target y."""

    reduction: str = "mean"

    targets: ClassVar[TargetKind] = TargetKind.NUMBERS
    affine: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _check_options("mse_loss", vars(self))

    def value(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return F.mse_loss(outputs, targets, reduction=self.reduction)


@register("losses", "l1_loss", summary="absolute error of each output, for regression")
@dataclass(frozen=True)
class AbsoluteLoss:
    """|z - y| of each output z with its target y."""

    reduction: str = "mean"

    targets: ClassVar[TargetKind] = TargetKind.NUMBERS

    def __post_init__(self) -> None:
        _check_options("l1_loss", vars(self))

    def value(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return F.l1_loss(outputs, targets, reduction=self.reduction)


@register(
    "losses",
    "dice",
    summary="1 - Dice coefficient of each class, for segmentation",
    paper=(
        "Milletari, Navab, Ahmadi: V-Net: Fully Convolutional Neural Networks for Volumetric Medical Image "
        "Segmentation, 3DV 2016, https://arxiv.org/abs/1606.04797"
    ),
)
@dataclass(frozen=True)
class Dice:
    """1 - (2 sum p y + s) / (sum p + sum y + s) of each example and class, sums over pixels, s = `smooth`.

    p is the softmax of the outputs, or the sigmoid of a single one. The paper squares p and y in the denominator;
    MONAI's DiceLoss, which hospitals use, does not, and neither does this. The background counts as a class.
    """

    smooth: float = 1e-5
    reduction: str = "mean"

    targets: ClassVar[TargetKind] = TargetKind.PIXELS

    def __post_init__(self) -> None:
        _check_options("dice", vars(self))

    def value(self, outputs: Tensor, targets: Tensor) -> Tensor:
        shares = outputs.sigmoid() if outputs.shape[1] == 1 else outputs.softmax(1)  # (n, classes, h, w)
        masks = _masks(outputs, targets)
        both = (shares * masks).flatten(2).sum(2)  # (n, classes)
        either = shares.flatten(2).sum(2) + masks.flatten(2).sum(2)
        losses = 1 - (2 * both + self.smooth) / (either + self.smooth)
        return losses.mean() if self.reduction == "mean" else losses.sum()


def _masks(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the targets as one mask for each class.  # (n, h, w) or (n, classes, h, w) -> (n, classes, h, w)"""
    if targets.ndim == outputs.ndim:
        return targets.to(outputs)
    if outputs.shape[1] == 1:
        return targets[:, None].to(outputs)
    classes = torch.arange(outputs.shape[1], device=targets.device).view(1, -1, *[1] * (targets.ndim - 1))
    return (targets[:, None] == classes).to(outputs)


@register("losses", "unknown", summary="a loss that is not known: exact attacks run, gradients are not matched")
@dataclass(frozen=True)
class UnknownLoss:
    """The loss of a recorded training that nothing names."""

    targets: ClassVar[TargetKind] = TargetKind.UNKNOWN

    def value(self, outputs: Tensor, targets: Tensor) -> Tensor:
        raise UsageError(
            "The loss of this training is not known, so its gradient cannot be computed: name it as training.loss, one "
            "of `fedglass list losses`."
        )
