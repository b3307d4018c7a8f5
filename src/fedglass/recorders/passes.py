"""Listeners to functions of torch, and the forward passes that are followed with them.

A listener is told of a call while the function computes what it always does.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm
from torch.overrides import TorchFunctionMode
from torch.utils.hooks import RemovableHandle

from fedglass.models.names import COMPILED
from fedglass.recorders.steps import ForwardPass

OnCall = Callable[[Any, tuple[Any, ...], Mapping[str, Any], Any], None]
"""A listener: it receives the function, its arguments and options, and its result."""

LOSSES: Mapping[Any, str] = {
    F.cross_entropy: "cross_entropy",
    F.nll_loss: "nll_loss",
    F.mse_loss: "mse_loss",
    F.l1_loss: "l1_loss",
    F.smooth_l1_loss: "smooth_l1_loss",
    F.huber_loss: "huber_loss",
    F.kl_div: "kl_div",
    F.binary_cross_entropy: "binary_cross_entropy",
    F.binary_cross_entropy_with_logits: "binary_cross_entropy_with_logits",
    F.multi_margin_loss: "multi_margin_loss",
    F.cosine_embedding_loss: "cosine_embedding_loss",
    F.triplet_margin_loss: "triplet_margin_loss",
}
"""Loss functions by name; torch's modules call them too."""


NETWORK_OUTPUT = "made by a network"
"""A mark on nodes of autograd's graph."""


class FunctionListener(TorchFunctionMode):
    """Tells a listener of all functions, in the thread that has entered it."""

    def __init__(self, on_call: OnCall) -> None:
        super().__init__()
        self._on_call = on_call

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        options = kwargs or {}
        result = func(*args, **options)
        self._on_call(func, args, options, result)
        return result


@contextmanager
def listening_losses(on_call: OnCall) -> Iterator[None]:
    """Tell a listener of losses in `torch.nn.functional`, in all threads."""

    def listening(function: Any) -> Any:
        @functools.wraps(function)
        def call(*args: Any, **options: Any) -> Any:
            result = function(*args, **options)
            on_call(function, args, options, result)
            return result

        return call

    plain = {function.__name__: function for function in LOSSES}
    for name, function in plain.items():
        setattr(F, name, listening(function))
    try:
        yield
    finally:
        for name, function in plain.items():
            setattr(F, name, function)


@contextmanager
def listening_backward(on_root: Callable[[Tensor], None]) -> Iterator[None]:
    """Tell a listener of what is differentiated, in all threads: `loss.backward()` calls `torch.autograd.backward`."""
    plain = torch.autograd.backward

    @functools.wraps(plain)
    def backward(tensors: Any, *args: Any, **options: Any) -> None:
        for root in (tensors,) if isinstance(tensors, Tensor) else tuple(tensors):
            on_root(root)
        plain(tensors, *args, **options)

    torch.autograd.backward = backward
    try:
        yield
    finally:
        torch.autograd.backward = plain


def mark_as_network_output(outputs: Iterable[Tensor]) -> None:
    """Mark outputs of a network in autograd's graph itself: a mark does not keep the graph alive."""
    for tensor in outputs:
        if tensor.grad_fn is not None:
            _marks(tensor.grad_fn)[NETWORK_OUTPUT] = True


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


def on_gradient(tensor: Tensor, call: Callable[[Tensor], None]) -> None:
    """Call a function with the gradient when it comes to a tensor."""
    tensor.register_hook(call)  # type: ignore[no-untyped-call] # of torch


def on_accumulated(parameter: Tensor, call: Callable[[Tensor], None]) -> RemovableHandle:
    """Call a function when a parameter's gradient has been added up."""
    handle: RemovableHandle = parameter.register_post_accumulate_grad_hook(call)  # type: ignore[no-untyped-call] # of torch
    return handle


DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)


class ForwardPasses:
    """The forward passes since the last step.

    A network may be called as a whole or in parts: a module that receives the output of another one continues its
    pass. If a module is called by keywords, the inputs are read off the first module inside that is not.
    """

    def __init__(
        self, on_begin: Callable[[nn.Module], None], on_end: Callable[[ForwardPass, list[Tensor]], None]
    ) -> None:
        self.since_step: list[ForwardPass] = []
        self._on_begin, self._on_end = on_begin, on_end
        self._depth = 0
        self._has_weights = False
        """Whether the outermost module that is being computed has weights."""
        self._current: ForwardPass | None = None
        self._generator: Tensor | None = None
        """The state of the random generator before the outermost module."""

    def enter(self, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        """Follow a module that is called."""
        first = next(tensors_in(inputs), None)
        if self._depth == 0:
            self._begin(module, inputs, first)
        elif self._current is not None and self._current.inputs is None and _is_data(first):
            self._current.inputs = _copy(first)
        self._depth += 1
        if self._current is not None:
            _inspect(self._current, module)

    def _begin(self, module: nn.Module, inputs: tuple[Any, ...], first: Tensor | None) -> None:
        self._generator = _generator_state(first)
        self._has_weights = any(True for _ in module.parameters())
        if first is not None and first.grad_fn is not None:
            self._current = self.since_step[-1] if self.since_step else None
        elif self._has_weights:
            autocast = torch.is_autocast_enabled("cpu" if first is None else first.device.type)
            count = max(1, sum(1 for _ in tensors_in(inputs)))
            self._current = ForwardPass(module, _copy(first), autocast=autocast, input_tensors=count)
            self._on_begin(module)
            if hasattr(module, COMPILED):  # calls inside of it are not reported
                for part in module.modules():
                    _inspect(self._current, part)

    def leave(self, module: nn.Module, output: Any) -> None:
        """Follow a module that returns."""
        if self._depth == 0:
            return
        self._depth -= 1
        if self._depth:
            return
        forward, self._current = self._current, None
        outputs = [tensor for tensor in tensors_in((output,)) if tensor.requires_grad]
        if forward is not None and forward.inputs is None:
            return  # the output can depend on the weights alone
        if self._has_weights:
            mark_as_network_output(outputs)
        if forward is None or not outputs:
            return
        drew_random = not _same_state(self._generator, _generator_state(forward.inputs))
        forward.drew_random = forward.drew_random or drew_random
        if self._has_weights:
            forward.logits = [tensor.detach() for tensor in outputs if tensor.dim() == 2]
        if not any(forward is earlier for earlier in self.since_step):
            self.since_step.append(forward)
            self._on_end(forward, outputs)


def _copy(inputs: Tensor | None) -> Tensor | None:
    """Return a copy, since a batch may be overwritten before the step is taken."""
    return None if inputs is None else inputs.detach().clone()


def _is_data(tensor: Tensor | None) -> bool:
    """Check that a tensor is neither a weight nor computed from any."""
    return tensor is not None and tensor.grad_fn is None and not isinstance(tensor, nn.Parameter)


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


def _same_state(one: Tensor | None, other: Tensor) -> bool:
    return one is not None and one.shape == other.shape and torch.equal(one, other)


def tensors_in(values: Iterable[Any]) -> Iterator[Tensor]:
    """Yield the tensors among arguments or results, also within lists and dictionaries."""
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from tensors_in(value)
        elif isinstance(value, Mapping):
            yield from tensors_in(value.values())
