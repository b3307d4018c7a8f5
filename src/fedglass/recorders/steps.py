"""Observations of one local step: forward passes, calls of losses and the optimiser's own numbers.

Forward passes are followed from module to module until the step that uses them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from fedglass.core.losses import is_class_labels
from fedglass.models.names import COMPILED
from fedglass.recorders.defences import PrivateStep
from fedglass.recorders.objectives import NamedObjective, are_logits_of, named_objective

NETWORK_OUTPUT = "made by a network"
"""A mark on nodes of autograd's graph."""
DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)


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
    results: Sequence[Tensor] = ()
    """All outputs, of any shape."""
    shape: tuple[int, ...] | None = None
    """The shape of one input."""
    outputs: int | None = None
    """The number of outputs of a classifier."""
    used: bool = False
    """Whether a gradient came back through it."""

    def on_gradient(self, gradient: Tensor) -> None:
        self.used = True


class ForwardPasses:
    """The forward passes since the last step.

    A network may be called as a whole or in parts: a module that receives the output of another one continues its
    pass. If a module is called by keywords, the inputs are read off the first module inside that is not.
    """

    def __init__(self) -> None:
        self.since_step: list[ForwardPass] = []
        self._depth = 0
        self._has_weights = False
        """Whether the outermost module that is being computed has weights."""
        self._current: ForwardPass | None = None
        self._generator: Tensor | None = None
        """The state of the random generator before the outermost module."""

    def enter(self, module: nn.Module, inputs: tuple[Any, ...]) -> bool:
        """Follow a module that is called; return whether a pass begins with it."""
        first, begins = next(tensors_in(inputs), None), False
        if self._depth == 0:
            begins = self._begin(module, inputs, first)
        elif self._current is not None and self._current.inputs is None:
            # Data are neither a weight nor computed from any.
            is_data = first is not None and first.grad_fn is None and not isinstance(first, nn.Parameter)
            self._current.inputs = _copy(first) if is_data else None
        self._depth += 1
        if self._current is not None:
            _inspect(self._current, module)
        return begins

    def _begin(self, module: nn.Module, inputs: tuple[Any, ...], first: Tensor | None) -> bool:
        self._generator = _generator_state(first)
        self._has_weights = any(True for _ in module.parameters())
        if first is not None and first.grad_fn is not None:
            self._current = self.since_step[-1] if self.since_step else None
            return False
        if not self._has_weights:
            return False
        autocast = torch.is_autocast_enabled("cpu" if first is None else first.device.type)
        count = max(1, sum(1 for _ in tensors_in(inputs)))
        self._current = ForwardPass(module, _copy(first), autocast=autocast, input_tensors=count)
        if hasattr(module, COMPILED):  # calls inside of it are not reported
            for part in module.modules():
                _inspect(self._current, part)
        return True

    def leave(self, module: nn.Module, output: Any) -> tuple[ForwardPass, list[Tensor]] | None:
        """Follow a module that returns; return a pass that ends with it for the first time, and its outputs."""
        if self._depth == 0:
            return None
        self._depth -= 1
        if self._depth:
            return None
        forward, self._current = self._current, None
        outputs = [tensor for tensor in tensors_in((output,)) if tensor.requires_grad]
        if forward is not None and forward.inputs is None:
            return None  # the output can depend on the weights alone
        if self._has_weights:
            # In autograd's graph itself: a mark does not keep the graph alive.
            for tensor in (tensor for tensor in outputs if tensor.grad_fn is not None):
                _marks(tensor.grad_fn)[NETWORK_OUTPUT] = True
        if forward is None or not outputs:
            return None
        now, begun = _generator_state(forward.inputs), self._generator
        if begun is None or begun.shape != now.shape or not torch.equal(begun, now):
            forward.drew_random = True
        if self._has_weights:
            forward.logits = [tensor.detach() for tensor in outputs if tensor.dim() == 2]
            forward.results = [tensor.detach() for tensor in outputs]
            forward.outputs = forward.logits[0].shape[1] if forward.logits else None
        if any(forward is earlier for earlier in self.since_step):
            return None
        self.since_step.append(forward)
        forward.shape = None if forward.inputs is None else tuple(forward.inputs.shape[1:])
        return forward, outputs


def _copy(inputs: Tensor | None) -> Tensor | None:
    """Return a copy, since a batch may be overwritten before the step is taken."""
    return None if inputs is None else inputs.detach().clone()


def _inspect(forward: ForwardPass, module: nn.Module) -> None:
    """Note batch normalisation and dropout."""
    if isinstance(module, _BatchNorm):
        # Without running statistics those of the batch are used in every mode.
        forward.batch_norm.add(module.training or module.running_mean is None)
    if isinstance(module, DROPOUTS) and module.training and module.p > 0:
        forward.dropout = True


def _generator_state(inputs: Tensor | None) -> Tensor:
    """Return the state of the generator that a network draws from on the device of its inputs."""
    return torch.cuda.get_rng_state(inputs.device) if inputs is not None and inputs.is_cuda else torch.get_rng_state()


def tensors_in(values: Iterable[Any]) -> Iterator[Tensor]:
    """Yield the tensors among arguments or results, also within lists and dictionaries."""
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from tensors_in(value)
        elif isinstance(value, Mapping):
            yield from tensors_in(value.values())


def _marks(node: Any) -> dict[str, object]:
    marks: dict[str, object] = node.metadata
    return marks


def has_weight_penalty(root: Tensor) -> bool:
    """Check whether the objective depends on weights on another way than through outputs of a network."""
    todo, visited = [root.grad_fn], set()
    while todo:
        node = todo.pop()
        if node is None or node in visited or NETWORK_OUTPUT in _marks(node):
            continue
        if isinstance(getattr(node, "variable", None), nn.Parameter):
            return True
        visited.add(node)
        todo += [behind for behind, _ in node.next_functions]
    return False


@dataclass(eq=False)
class LossCall:
    """A call of a loss function."""

    name: str
    targets: Tensor | None
    reduction: str
    label_smoothing: float
    plain: bool
    """Whether all examples have the same weight, and none is ignored."""
    inputs: Tensor | None = None
    """What the loss was computed on, of any shape."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """All other options of the call."""
    used: bool = False
    weight: float = 0.0
    """The derivative of the objective by the mean of this loss over its examples: 1 if that is the objective."""

    @classmethod
    def of(cls, name: str, args: Sequence[Any], options: Mapping[str, Any]) -> Self:
        """Read the arguments of a call."""
        arguments = dict(zip(("input", "target", "weight"), args, strict=False)) | dict(options)
        inputs, target = arguments.get("input"), arguments.get("target")
        # The negative log-likelihood of logarithms of probabilities is the cross entropy.
        if name == "nll_loss" and isinstance(inputs, Tensor):
            name = "cross_entropy" if bool((inputs.detach().logsumexp(1).abs() < 1e-3).all()) else name
        is_class = isinstance(target, Tensor) and not target.is_floating_point()
        ignores = is_class and bool((target == arguments.get("ignore_index", -100)).any())
        return cls(
            name,
            target.detach() if isinstance(target, Tensor) else None,
            str(arguments.get("reduction", "mean")),
            float(arguments.get("label_smoothing", 0.0) or 0.0),
            arguments.get("weight") is None and not ignores,
            inputs.detach() if isinstance(inputs, Tensor) else None,
            {name: value for name, value in arguments.items() if name not in ("input", "target")},
        )

    @property
    def plain_mean(self) -> bool:
        """Return whether it is the mean over all examples, of one class each, with the weight 1."""
        is_class = self.targets is not None and is_class_labels(self.targets)
        return self.plain and is_class and abs(self.weight - 1) <= 1e-3

    def on_gradient(self, gradient: Tensor) -> None:
        self.used = True
        self.plain = self.plain and bool(torch.allclose(gradient, gradient.mean()))
        examples = len(self.targets) if self.reduction == "sum" and self.targets is not None else 1
        self.weight += float(gradient.sum()) * examples


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
    """None if it was not seen, or if it is a private step, which replaces what backward has left."""
    private: PrivateStep | None
    """What Opacus says of the step; None without Opacus."""
    sample_rate: float | None
    """The rate at which a data loader of Opacus drew each example of it; None of any other batch."""
    by_hand: bool
    """Whether weights were written outside of optimisers, since the previous step or after the last one."""
    passes: tuple[ForwardPass, ...]
    """More than one if gradients were accumulated; their tensors are no longer kept."""
    rows: tuple[bytes, ...]
    """A digest of each example."""
    labels: tuple[int, ...] | None
    """The targets of the loss; None if they are not classes, or not as many as examples."""
    losses: tuple[LossCall, ...]
    changed_outputs: bool
    """Whether a loss was computed on something else than outputs of the network, such as scaled logits."""
    penalty: bool
    """Whether the objective depends on weights on another way than through the network."""
    objective: NamedObjective | None
    """The loss by name with its options and targets; None if it has no name."""

    @property
    def examples(self) -> int:
        return len(self.rows)

    @property
    def module(self) -> nn.Module | None:
        return self.passes[0].module if self.passes else None

    @property
    def shape(self) -> tuple[int, ...] | None:
        """The shape of one input."""
        return self.passes[0].shape if self.passes else None

    @property
    def autocast(self) -> bool:
        return any(forward.autocast for forward in self.passes)

    @classmethod
    def of(
        cls,
        optimiser: Mapping[str, Any],
        passes: Sequence[ForwardPass],
        losses: Sequence[LossCall],
        rows: Sequence[bytes],
        penalty: bool,
    ) -> Self:
        """Summarise the passes and losses since the previous step, and let go of the tensors of the passes."""
        logits = [output for forward in passes for output in forward.logits]
        of_classes = [loss.inputs for loss in losses if loss.name == "cross_entropy"]
        two_dimensional = [inputs for inputs in of_classes if inputs is not None and inputs.dim() == 2]
        step = cls(
            **optimiser,
            passes=tuple(passes),
            rows=tuple(rows),
            labels=_labels(losses, len(rows)),
            losses=tuple(losses),
            changed_outputs=bool(logits) and not all(are_logits_of(inputs, logits) for inputs in two_dimensional),
            penalty=penalty,
            objective=named_objective(losses, [tensor for forward in passes for tensor in forward.results], len(rows)),
        )
        for forward in passes:
            forward.inputs, forward.logits, forward.results = None, (), ()
        return step


def _labels(losses: Sequence[LossCall], examples: int) -> tuple[int, ...] | None:
    """Return the classes that losses were given, one for each example; several losses of the same must agree."""
    targets = [loss.targets for loss in losses if loss.targets is not None]
    classes = [t for t in targets if t.dtype in (torch.int64, torch.int32, torch.uint8) and t.dim() == 1]
    if classes and sum(map(len, classes)) != examples and all(map(classes[0].equal, classes)):
        classes = classes[:1]
    if not classes or sum(map(len, classes)) != examples:
        return None
    return tuple(int(label) for labels in classes for label in labels)
