"""Targets of a loss: checks of a client's targets, targets made of classes, and losses by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedglass.core.errors import DataError, UsageError, unknown_name
from fedglass.core.losses import Loss, TargetKind, is_class_labels, not_ignored, target_kind
from fedglass.core.registry import built_in, make
from fedglass.fl.loss.losses import CrossEntropy

SUM_ERROR = 1e-3
"""The rounding of probabilities that add up to 1."""


def named_loss(name: str, options: Mapping[str, Any] | None = None, own: bool = True) -> Loss:
    """Return the loss of that name with its options; without `own` it must be built in, as the names of files are.

    >>> named_loss("mse_loss", {"reduction": "sum"})
    SquaredLoss(reduction='sum')
    """
    if not own and name not in built_in("losses"):
        raise unknown_name("loss", name, built_in("losses"))
    return cast(Loss, make("losses", name, **(options or {})))


def loss_fields(loss: Loss | None) -> dict[str, Any]:
    """Return the fields of a `Training` for a loss: mean cross entropy has a field for its smoothing alone.

    >>> loss_fields(CrossEntropy(label_smoothing=0.1))
    {'loss': None, 'label_smoothing': 0.1}
    """
    if isinstance(loss, CrossEntropy) and loss == CrossEntropy(loss.label_smoothing):
        return {"loss": None, "label_smoothing": loss.label_smoothing}
    return {"loss": loss}


def name_and_options(loss: Loss) -> tuple[str, dict[str, Any]] | None:
    """Return name and options of a built-in loss, as plans and bundles write them; None for any other.

    >>> name_and_options(CrossEntropy(weight=(1.0, 2.0)))
    ('cross_entropy', {'weight': [1.0, 2.0]})
    """
    name = next((name for name, entry in built_in("losses").items() if entry.value is type(loss)), None)
    if name is None:
        return None
    values = {f.name: getattr(loss, f.name) for f in fields(cast(Any, loss)) if getattr(loss, f.name) != f.default}
    return name, {option: list(value) if isinstance(value, tuple) else value for option, value in values.items()}


def targets_from_classes(loss: Loss | None, labels: Tensor, classes: int) -> Tensor:
    """Return one-hot rows for classes where the loss asks for numbers; any other targets stay as they are.

    >>> from fedglass.fl.loss.losses import SquaredLoss
    >>> targets_from_classes(SquaredLoss(), torch.tensor([1]), 3)
    tensor([[0., 1., 0.]])
    """
    wants_numbers = target_kind(loss) in (TargetKind.SHARES, TargetKind.NUMBERS)
    return F.one_hot(labels, classes).float() if wants_numbers and is_class_labels(labels) else labels


def blank_targets(loss: Loss | None, examples: int, like: Tensor, outputs: tuple[int, ...]) -> Tensor:
    """Return zeros in the form of the loss's targets, for a network with outputs of this shape for one example."""
    kind = target_kind(loss)
    if kind in (TargetKind.CLASSES, TargetKind.PIXELS):
        return like.new_zeros(examples, *outputs[1:]).long()
    return like.new_zeros(examples, *outputs)


def output_shape(model: nn.Module, shape: tuple[int, int, int]) -> tuple[int, ...]:
    """Return the shape of the network's outputs for one example."""
    modes = {layer: layer.training for layer in model.modules()}
    like = next(iter(model.parameters()))
    try:
        with torch.no_grad():
            outputs = model.eval()(torch.zeros(2, *shape).to(like))
    finally:
        for layer, training in modes.items():
            layer.training = training
    return tuple(outputs.shape[1:])


def check_targets(who: str, loss: Loss | None, targets: Tensor, outputs: tuple[int, ...]) -> None:
    """Refuse targets that do not fit the loss and the outputs of one example; `who` has the targets."""
    kind, name = target_kind(loss), "cross_entropy" if loss is None else _title(loss)
    got = f"{targets.dtype} of shape {tuple(targets.shape)}"
    if kind is TargetKind.UNKNOWN:
        raise UsageError(f"{who} cannot train with an unknown loss: name it as training.loss.")
    if kind is TargetKind.CLASSES and len(outputs) != 1:
        raise DataError(
            f"The loss {name} needs one number for each class, but the network's outputs for one example have shape "
            f"{outputs}: choose another loss, such as pixel_cross_entropy, or another network."
        )
    if kind in (TargetKind.CLASSES, TargetKind.PIXELS) and not targets.is_floating_point():
        _check_classes(who, name, loss, targets, outputs)
    elif tuple(targets.shape[1:]) != outputs:
        raise DataError(
            f"{who} has targets of shape {tuple(targets.shape[1:])} for one example, but the network's outputs have "
            f"shape {outputs}: {name} needs targets in the shape of the outputs."
        )
    elif not targets.is_floating_point():
        raise DataError(f"{who} has targets of type {got}, but {name} needs floats: convert them.")
    elif not bool(torch.isfinite(targets).all()):
        raise DataError(f"{who} has targets that are NaN or infinite: correct them.")
    elif kind is TargetKind.CLASSES and not bool(((targets.sum(1) - 1).abs() <= SUM_ERROR).all()):
        raise DataError(
            f"{who} has targets that do not add up to 1, but {name} needs one class for each example, or probabilities "
            "of the classes: choose another loss, such as binary_cross_entropy_with_logits."
        )
    elif kind is not TargetKind.NUMBERS and not bool(((targets >= 0) & (targets <= 1)).all()):
        raise DataError(
            f"{who} has targets from {float(targets.min()):g} to {float(targets.max()):g}, but {name} needs targets in "
            "[0, 1]: scale them, or choose another loss."
        )


def fits_targets(loss: Loss | None, targets: Tensor, outputs: tuple[int, ...]) -> bool:
    """Return whether targets fit the loss and the outputs of one example."""
    try:
        check_targets("The data", loss, targets, outputs)
    except UsageError:
        return False
    return True


def _check_classes(who: str, name: str, loss: Loss | None, targets: Tensor, outputs: tuple[int, ...]) -> None:
    """Check classes of examples or of pixels; the ignored class may be any."""
    if tuple(targets.shape[1:]) != outputs[1:]:
        raise DataError(
            f"{who} has classes of shape {tuple(targets.shape[1:])} for one example, but the network's outputs have "
            f"shape {outputs}: {name} needs one class for each {'pixel' if len(outputs) > 1 else 'example'}."
        )
    classes = outputs[0] if len(outputs) == 1 else max(outputs[0], 2)  # a single output has two classes of pixels
    used = not_ignored(loss, targets)
    outside = used[(used < 0) | (used >= classes)]
    if len(outside):
        raise DataError(
            f"{who} has label {int(outside[0])}, expected 0 to {classes - 1}: "
            "correct the label, raise the number of classes, or set the loss's ignore_index to this label."
        )


def _title(loss: Loss) -> str:
    named = name_and_options(loss)
    return type(loss).__name__ if named is None else named[0]
