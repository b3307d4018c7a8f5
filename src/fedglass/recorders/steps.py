"""Observations of one local step: forward passes, calls of losses and the optimiser's own numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn


@dataclass(eq=False)
class ForwardPass:
    """A forward pass of the network."""

    module: nn.Module
    inputs: Tensor | None
    """None until data were seen to enter."""
    batch_norm: set[bool] = field(default_factory=set)
    """Whether layers of batch normalisation used the statistics of the batch."""
    dropout: bool = False
    drew_random: bool = False
    """Whether random numbers were drawn."""
    input_tensors: int = 1
    """The number of tensors that entered the network."""
    autocast: bool = False
    """Whether it was computed in mixed precision; the step itself is usually taken outside of that."""
    logits: Sequence[Tensor] = ()  # (n, classes) each
    """The outputs of a classifier."""
    used: bool = False
    """Whether a gradient came back through it."""

    @property
    def outputs(self) -> int | None:
        return self.logits[0].shape[1] if self.logits else None

    def on_gradient(self, gradient: Tensor) -> None:
        self.used = True


@dataclass(eq=False)
class LossCall:
    """A call of a loss function."""

    name: str
    targets: Tensor | None
    reduction: str
    label_smoothing: float
    plain: bool
    """Whether all examples have the same weight, and none is ignored."""
    logits: Tensor | None = None  # (n, classes)
    used: bool = False
    weight: float = 0.0
    """The derivative of the objective by the mean of this loss over its examples: 1 if that is the objective."""

    @classmethod
    def of(cls, name: str, args: Sequence[Any], options: Mapping[str, Any]) -> Self:
        """Read the arguments of a call."""
        arguments = dict(zip(("input", "target", "weight"), args, strict=False)) | dict(options)
        logits, target = arguments.get("input"), arguments.get("target")
        return cls(
            "cross_entropy" if name == "nll_loss" and _is_log_softmax(logits) else name,
            target.detach() if isinstance(target, Tensor) else None,
            str(arguments.get("reduction", "mean")),
            float(arguments.get("label_smoothing", 0.0) or 0.0),
            arguments.get("weight") is None and not _has_ignored(target, arguments.get("ignore_index", -100)),
            logits.detach() if isinstance(logits, Tensor) and logits.dim() == 2 else None,
        )

    def on_gradient(self, gradient: Tensor) -> None:
        self.used = True
        self.plain = self.plain and bool(torch.allclose(gradient, gradient.mean()))
        examples = len(self.targets) if self.reduction == "sum" and self.targets is not None else 1
        self.weight += float(gradient.sum()) * examples

    def is_of(self, outputs: Sequence[Tensor]) -> bool:
        """Check whether the logits are outputs of a network, up to a constant that a softmax removes."""
        logits = self.logits
        return logits is None or any(
            logits.shape == output.shape
            and bool(torch.allclose(logits.float().log_softmax(1), output.float().log_softmax(1), atol=1e-3))
            for output in outputs
        )


def _is_log_softmax(logits: Any) -> bool:
    """Check for logarithms of probabilities: their negative log-likelihood is the cross entropy."""
    return isinstance(logits, Tensor) and bool((logits.detach().logsumexp(1).abs() < 1e-3).all())


def _has_ignored(target: Any, index: int) -> bool:
    is_class = isinstance(target, Tensor) and not target.is_floating_point()
    return is_class and bool((target == index).any())


class Gradient(NamedTuple):
    """The norm of a gradient after backward and at the step."""

    before: float
    used: float
    same_direction: bool
    """Whether only its length was changed in between."""

    def same_length(self, tolerance: float) -> bool:
        return abs(self.before - self.used) <= tolerance * max(self.before, self.used)


@dataclass(frozen=True, eq=False)
class ObservedStep:
    """One step of an optimiser, and what went into it."""

    optimiser: str
    options: Sequence[Mapping[str, Any]]
    """The hyper-parameters of each group of parameters."""
    carried: bool
    """Whether the optimiser had a state before the first step: momentum from an earlier round."""
    weights: frozenset[int]
    """The parameters that it steps, by identity."""
    gradient: Gradient | None
    autocast: bool
    passes: int
    """The number of forward passes; more than one if gradients were accumulated."""
    rows: tuple[bytes, ...]
    """A digest of each example."""
    labels: tuple[int, ...] | None
    """The targets of the loss; None if they are not classes, or not as many as examples."""
    losses: tuple[LossCall, ...]
    batch_norm: frozenset[bool]
    dropout: bool
    drew_random: bool
    """Whether the network drew random numbers."""
    input_tensors: int
    """The number of tensors that entered the network."""
    by_hand: bool
    """Whether weights were written outside of optimisers, since the previous step or after the last one."""
    changed_outputs: bool
    """Whether a loss was computed on something else than outputs of the network, such as scaled logits."""
    penalty: bool
    """Whether the objective depends on weights on another way than through the network."""
    module: nn.Module | None
    shape: tuple[int, ...] | None
    """The shape of one input."""
    outputs: int | None

    @property
    def examples(self) -> int:
        return len(self.rows)

    @classmethod
    def of(
        cls,
        optimiser: Mapping[str, Any],
        passes: Sequence[ForwardPass],
        losses: Sequence[LossCall],
        rows: Sequence[bytes],
        penalty: bool,
    ) -> Self:
        """Summarise the passes and losses since the previous step."""
        logits = [output for forward in passes for output in forward.logits]
        first = passes[0] if passes else None
        return cls(
            **optimiser,
            passes=len(passes),
            rows=tuple(rows),
            labels=_labels(losses, len(rows)),
            losses=tuple(losses),
            batch_norm=frozenset(mode for forward in passes for mode in forward.batch_norm),
            dropout=any(forward.dropout for forward in passes),
            drew_random=any(forward.drew_random for forward in passes),
            input_tensors=max((forward.input_tensors for forward in passes), default=1),
            autocast=any(forward.autocast for forward in passes),
            changed_outputs=bool(logits)
            and not all(loss.is_of(logits) for loss in losses if loss.name == "cross_entropy"),
            penalty=penalty,
            module=None if first is None else first.module,
            shape=None if first is None or first.inputs is None else tuple(first.inputs.shape[1:]),
            outputs=None if first is None else first.outputs,
        )


def _labels(losses: Sequence[LossCall], examples: int) -> tuple[int, ...] | None:
    """Return the classes that losses were given, one for each example; several losses of the same must agree."""
    classes = [loss.targets for loss in losses if loss.targets is not None and _are_classes(loss.targets)]
    if classes and sum(map(len, classes)) != examples and all(map(classes[0].equal, classes)):
        classes = classes[:1]
    if not classes or sum(map(len, classes)) != examples:
        return None
    return tuple(int(label) for targets in classes for label in targets)


def _are_classes(targets: Tensor) -> bool:
    return targets.dtype in (torch.int64, torch.int32, torch.uint8) and targets.dim() == 1
