"""The role of a loss: what a client's training minimises, and what its targets look like.

The losses themselves are in `fedglass.fl.loss`; a `Training` holds one as a value.
"""

from __future__ import annotations

import enum
from typing import Protocol

import torch
from torch import Tensor


class TargetKind(enum.Enum):
    """The form of a loss's targets."""

    CLASSES = "classes"
    """One class for each example, (n,), or the probability of each class."""
    PIXELS = "pixels"
    """One class for each pixel, (n, h, w), or the probability of each class at each pixel."""
    SHARES = "shares"
    """Numbers in [0, 1] in the shape of the outputs, such as several labels that hold or not."""
    NUMBERS = "numbers"
    """Any numbers in the shape of the outputs."""
    UNKNOWN = "unknown"
    """The loss is not known, and so are its targets."""

    def __repr__(self) -> str:
        return f"TargetKind.{self.name}"


class Loss(Protocol):
    """A loss of a local step. A frozen dataclass of plain values.

    It may have a class attribute `targets`, a `TargetKind`; without it targets are numbers in the shape of the outputs.
    """

    def value(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the loss of a batch, a number that is differentiable in the outputs."""
        ...


def target_kind(loss: Loss | None) -> TargetKind:
    """Return the form of the targets; without a loss it is the cross entropy, which has classes.

    >>> target_kind(None)
    TargetKind.CLASSES
    """
    if loss is None:
        return TargetKind.CLASSES
    return TargetKind(getattr(loss, "targets", TargetKind.NUMBERS))


def not_ignored(loss: Loss | None, labels: Tensor) -> Tensor:
    """Return the labels that the loss does not ignore.

    >>> not_ignored(None, torch.tensor([0, 255]))
    tensor([  0, 255])
    """
    ignored = getattr(loss, "ignore_index", None)
    return labels[labels != ignored] if isinstance(ignored, int) else labels


def is_class_labels(targets: Tensor) -> bool:
    """Return whether targets are one class for each example.  # (n,)"""
    return targets.ndim == 1 and not targets.is_floating_point()


def is_target(labels: Tensor) -> bool:
    """Return whether these can be the targets of a loss without one class for each example."""
    return (labels.is_floating_point() and labels.ndim >= 2) or (labels.dtype == torch.int64 and labels.ndim == 3)


def grouping(targets: Tensor) -> Tensor:
    """Return the classes, or one group for all examples if their targets are not classes.  # (n,)"""
    return targets if is_class_labels(targets) else torch.zeros(len(targets), dtype=torch.int64)


def class_numbers(targets: Tensor) -> list[int]:
    """Return one number for each example, as records list labels: its class, or -1 if its target is not a class.

    >>> class_numbers(torch.tensor([3, 1])), class_numbers(torch.zeros(2, 14))
    ([3, 1], [-1, -1])
    """
    return [int(label) for label in targets.tolist()] if is_class_labels(targets) else [-1] * len(targets)
