"""What was seen of one local step: forward passes, losses and the optimiser's own numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import torch
from torch import Tensor, nn


@dataclass(eq=False)
class ForwardPass:
    """A forward pass of the network."""

    module: nn.Module
    inputs: Tensor | None
    """None as long as none were seen."""
    batch_norm: set[bool] = field(default_factory=set)
    """Whether layers of batch normalisation used the batch's own statistics."""
    dropout: bool = False
    drew: bool = False
    """Whether random numbers were drawn."""
    given: int = 1
    """How many tensors the network was given."""
    autocast: bool = False
    """Whether it was computed in mixed precision; the step itself is usually taken outside of that."""
    logits: Sequence[Tensor] = ()  # (n, classes) each
    """What came out, of a classifier."""
    used: bool = False
    """Whether a gradient came back through it."""

    @property
    def outputs(self) -> int | None:
        return self.logits[0].shape[1] if self.logits else None

    @property
    def nothing_given(self) -> bool:
        return self.inputs is None

    def reached(self, gradient: Tensor) -> None:
        self.used = True


@dataclass(eq=False)
class LossCall:
    """A call of a loss function."""

    name: str
    targets: Tensor | None
    reduction: str
    label_smoothing: float
    plain: bool
    """Whether all examples weigh the same, and none is left out."""
    logits: Tensor | None = None  # (n, classes)
    used: bool = False
    weight: float = 0.0
    """The derivative of what was minimised by this loss's mean over its examples: 1 where that was minimised itself."""

    @classmethod
    def of(cls, name: str, given: Sequence[Any], options: Mapping[str, Any]) -> Self:
        told = dict(zip(("input", "target", "weight"), given, strict=False)) | dict(options)
        target = told.get("target")
        return cls(
            "cross_entropy" if name == "nll_loss" and _normalised(told.get("input")) else name,
            target.detach() if isinstance(target, Tensor) else None,
            str(told.get("reduction", "mean")),
            float(told.get("label_smoothing", 0.0) or 0.0),
            told.get("weight") is None and not _ignored(target, told.get("ignore_index", -100)),
            logits.detach() if isinstance(logits := told.get("input"), Tensor) and logits.dim() == 2 else None,
        )

    def reached(self, gradient: Tensor) -> None:
        self.used = True
        self.plain = self.plain and bool(torch.allclose(gradient, gradient.mean()))
        examples = len(self.targets) if self.reduction == "sum" and self.targets is not None else 1
        self.weight += float(gradient.sum()) * examples

    def is_of(self, made: Sequence[Tensor]) -> bool:
        """Whether it was given what a network made, but for what a softmax takes out again."""
        own = self.logits
        return own is None or any(
            own.shape == each.shape
            and bool(torch.allclose(own.float().log_softmax(1), each.float().log_softmax(1), atol=1e-3))
            for each in made
        )


def _normalised(logits: Any) -> bool:
    """Whether these are logarithms of probabilities, of which the negative log-likelihood is the cross entropy."""
    return isinstance(logits, Tensor) and bool((logits.detach().logsumexp(1).abs() < 1e-3).all())


def _ignored(target: Any, index: int) -> bool:
    whole = isinstance(target, Tensor) and not target.is_floating_point()
    return whole and bool((target == index).any())


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
    gradient: tuple[float, float, bool] | None
    """Its norm as backward left it and as it was used, and whether only its length was changed."""
    autocast: bool
    passes: int
    """Forward passes, more than one where gradients were accumulated."""
    rows: tuple[bytes, ...]
    """A digest of each example."""
    labels: tuple[int, ...] | None
    """Those that the loss was given; None where they are no classes, or not as many as examples."""
    losses: tuple[LossCall, ...]
    batch_norm: frozenset[bool]
    dropout: bool
    drew: bool
    """Whether the network drew random numbers."""
    given: int
    """How many tensors it was given."""
    by_hand: bool
    """Whether weights were written to by others than optimisers, since the last step or after the last of all."""
    otherwise: bool
    """Whether a loss was given something else than what the network made, such as scaled logits."""
    penalty: bool
    """Whether weights entered what was minimised on another way than through the network."""
    module: nn.Module | None
    shape: tuple[int, ...] | None
    """Of one input."""
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
        return cls(
            **optimiser,
            passes=len(passes),
            rows=tuple(rows),
            labels=_labels(losses, len(rows)),
            losses=tuple(losses),
            batch_norm=frozenset(mode for each in passes for mode in each.batch_norm),
            dropout=any(each.dropout for each in passes),
            drew=any(each.drew for each in passes),
            given=max((each.given for each in passes), default=1),
            autocast=any(each.autocast for each in passes),
            otherwise=bool(made := [each for one in passes for each in one.logits])
            and not all(each.is_of(made) for each in losses if each.name == "cross_entropy"),
            penalty=penalty,
            module=passes[0].module if passes else None,
            shape=tuple(passes[0].inputs.shape[1:]) if passes and passes[0].inputs is not None else None,
            outputs=passes[0].outputs if passes else None,
        )


def _labels(losses: Sequence[LossCall], examples: int) -> tuple[int, ...] | None:
    """The classes that losses were given, one for each example; several of the same examples must agree."""
    classes = [each.targets for each in losses if each.targets is not None and _are_classes(each.targets)]
    if classes and sum(len(each) for each in classes) != examples and all(map(classes[0].equal, classes)):
        classes = classes[:1]
    if not classes or sum(len(each) for each in classes) != examples:
        return None
    return tuple(int(label) for each in classes for label in each)


def _are_classes(targets: Tensor) -> bool:
    return targets.dtype in (torch.int64, torch.int32, torch.uint8) and targets.dim() == 1
