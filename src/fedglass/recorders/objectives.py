"""The loss of an observed step by the name and options of a part of `fedglass.fl.loss`, with its targets.

A loss has such a name if a step called one loss function of torch on the network's own outputs and differentiated its
mean or its sum. The outputs may be reshaped before it, and a binary cross entropy may be computed on their sigmoid.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from fedglass.recorders.steps import LossCall

CLASS_LOSS, PIXEL_LOSS = "cross_entropy", "pixel_cross_entropy"
SIGMOID_LOSS = "binary_cross_entropy_with_logits"
SAME = 1e-3
"""Absolute difference up to which a loss was computed on outputs of the network."""


@dataclass(frozen=True, eq=False)
class NamedObjective:
    """A loss by name, and its targets."""

    name: str
    options: Mapping[str, Any]
    targets: Tensor  # (n, ...)
    outputs: int
    """The number of classes, or of numbers that are predicted."""


OfOutputs = Callable[[Tensor], Tensor]


def named_objective(losses: Sequence[LossCall], outputs: Sequence[Tensor], examples: int) -> NamedObjective | None:
    """Return the loss of a step; None if it has no name, or if its targets are not those of the step's examples."""
    if len(losses) != 1:
        return None
    loss, targets, inputs = losses[0], losses[0].targets, losses[0].inputs
    if targets is None or inputs is None:
        return None
    if any(loss.options.get(legacy) is not None for legacy in ("size_average", "reduce")):
        return None
    reduction = _reduction(loss, targets)
    if reduction is None:
        return None
    options: dict[str, Any] = {} if reduction == "mean" else {"reduction": reduction}
    if loss.name == "cross_entropy":
        return _of_classes(loss, (inputs, targets), outputs, examples, options)
    kinds: dict[str, tuple[str, OfOutputs]] = {
        SIGMOID_LOSS: (SIGMOID_LOSS, lambda out: out),
        "binary_cross_entropy": (SIGMOID_LOSS, torch.sigmoid),
        "mse_loss": ("mse_loss", lambda out: out),
        "l1_loss": ("l1_loss", lambda out: out),
    }
    if loss.name not in kinds:
        return None
    name, of_outputs = kinds[loss.name]
    output = next((out for out in outputs if _same(inputs, of_outputs(out.float()))), None)
    if output is None or targets.shape != inputs.shape or len(output) != examples or output.dim() < 2:
        return None
    for option in ("weight", "pos_weight"):
        if loss.options.get(option) is not None:
            weights = _per_output(loss.options[option], output)
            if weights is None:
                return None
            options[option] = weights
    return NamedObjective(name, options, targets.reshape(output.shape).float(), output.shape[1])


def _of_classes(
    loss: LossCall,
    arguments: tuple[Tensor, Tensor],
    outputs: Sequence[Tensor],
    examples: int,
    options: dict[str, Any],
) -> NamedObjective | None:
    """Return a cross entropy of classes, of examples or of pixels."""
    inputs, targets = arguments
    if targets.is_floating_point() or len(targets) != examples or inputs.dim() not in (2, 4):
        return None
    if not are_logits_of(inputs, outputs):
        return None
    if loss.label_smoothing:
        options["label_smoothing"] = loss.label_smoothing
    if loss.options.get("weight") is not None:
        weights = _per_output(loss.options["weight"], inputs)
        if weights is None:
            return None
        options["weight"] = weights
    ignored = loss.options.get("ignore_index", -100)
    if isinstance(ignored, int) and bool((targets == ignored).any()):
        options["ignore_index"] = ignored
    return NamedObjective(CLASS_LOSS if inputs.dim() == 2 else PIXEL_LOSS, options, targets.long(), inputs.shape[1])


def _reduction(loss: LossCall, targets: Tensor) -> str | None:
    """Return the reduction that was differentiated: the mean or the sum of the loss itself; None if it is another."""
    by_mean = {"sum": len(targets), "none": targets.numel()}
    if abs(loss.weight - 1) <= SAME and loss.reduction in ("mean", "none"):
        return "mean"
    expected = by_mean.get(loss.reduction)
    return "sum" if expected is not None and abs(loss.weight / expected - 1) <= SAME else None


def are_logits_of(inputs: Tensor, outputs: Sequence[Tensor]) -> bool:
    """Check whether logits are outputs of a network, up to a constant that a softmax removes."""
    same_shape = (out for out in outputs if out.shape == inputs.shape)
    return any(_same(inputs.float().log_softmax(1), out.float().log_softmax(1)) for out in same_shape)


def _same(one: Tensor, other: Tensor) -> bool:
    """Check that two tensors hold the same numbers, in the same order but in any shape of as many examples."""
    return (
        len(one) == len(other)
        and one.numel() == other.numel()
        and bool(torch.allclose(one.detach().float().flatten(), other.detach().float().flatten(), atol=SAME))
    )


def _per_output(weights: Any, outputs: Tensor) -> list[float] | None:
    """Return one weight for each output of the network; None if examples or pixels have weights of their own."""
    if not isinstance(weights, Tensor) or weights.dim() > 1 or weights.numel() != outputs.shape[1]:
        return None
    return [float(weight) for weight in weights.flatten()]
