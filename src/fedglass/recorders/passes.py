"""Forward passes, followed from the first module that is called to what comes out of the last."""

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

# Functions of torch that show themselves to a listener while they compute what they always do.


Called = Callable[[Any, tuple[Any, ...], Mapping[str, Any], Any], None]
"""Is told the function, its arguments and options, and what came out."""

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
"""Functions that a module of the same name calls too."""


NETWORK_OUTPUT = "made by a network"
"""A mark of nodes of autograd's graph."""


class FunctionListener(TorchFunctionMode):
    """All functions, in the thread that has entered it."""

    def __init__(self, called: Called) -> None:
        super().__init__()
        self._called = called

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        options = kwargs or {}
        result = func(*args, **options)
        self._called(func, args, options, result)
        return result


@contextmanager
def listening_losses(called: Called) -> Iterator[None]:
    """Losses in `torch.nn.functional`, in all threads."""

    def shown(function: Any) -> Any:
        @functools.wraps(function)
        def call(*given: Any, **options: Any) -> Any:
            result = function(*given, **options)
            called(function, given, options, result)
            return result

        return call

    plain = {function.__name__: function for function in LOSSES}
    for name, function in plain.items():
        setattr(F, name, shown(function))
    try:
        yield
    finally:
        for name, function in plain.items():
            setattr(F, name, function)


@contextmanager
def listening_backward(called: Callable[[Tensor], None]) -> Iterator[None]:
    """What gradients are asked of, in all threads: `loss.backward()` goes by way of `torch.autograd.backward`."""
    plain = torch.autograd.backward

    @functools.wraps(plain)
    def backward(tensors: Any, *given: Any, **options: Any) -> None:
        for root in (tensors,) if isinstance(tensors, Tensor) else tuple(tensors):
            called(root)
        plain(tensors, *given, **options)

    torch.autograd.backward = backward
    try:
        yield
    finally:
        torch.autograd.backward = plain


def mark_as_network_output(outputs: Iterable[Tensor]) -> None:
    """Remember in the graph itself, which is not kept alive by it, that these came out of a network."""
    for tensor in outputs:
        if tensor.grad_fn is not None:
            _marks(tensor.grad_fn)[NETWORK_OUTPUT] = True


def _marks(node: Any) -> dict[str, object]:
    found: dict[str, object] = node.metadata
    return found


def has_weight_penalty(root: Tensor) -> bool:
    """Whether weights are in what is minimised on another way than through what a network made."""
    todo, seen = [root.grad_fn], set()
    while todo:
        node = todo.pop()
        if node is None or node in seen or NETWORK_OUTPUT in _marks(node):
            continue
        if isinstance(getattr(node, "variable", None), nn.Parameter):
            return True
        seen.add(node)
        todo += [behind for behind, _ in node.next_functions]
    return False


def on_gradient(tensor: Tensor, call: Callable[[Tensor], None]) -> None:
    """Call a function with the gradient when it comes to a tensor."""
    tensor.register_hook(call)  # type: ignore[no-untyped-call] # of torch


def on_accumulated(parameter: Tensor, call: Callable[[Tensor], None]) -> RemovableHandle:
    """Call a function when a parameter's gradient has been added up."""
    handle: RemovableHandle = parameter.register_post_accumulate_grad_hook(call)  # type: ignore[no-untyped-call] # of torch
    return handle


RANDOM = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)


class ForwardPasses:
    """The forward passes since the last step.

    A network may be called as a whole or in stretches: what is given something that another module has made goes on
    with the pass of that. One that is called by keywords has its inputs read off the first module inside that is not.
    """

    def __init__(self, begins: Callable[[nn.Module], None], ends: Callable[[ForwardPass, list[Tensor]], None]) -> None:
        self.since: list[ForwardPass] = []
        self._begins, self._ends = begins, ends
        self._depth = 0
        self._network = False
        """Whether a module with weights of its own is being computed."""
        self._pass: ForwardPass | None = None
        self._drawn: Tensor | None = None

    def entered(self, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        """A module is called."""
        given = next(tensors_in(inputs), None)
        if self._depth == 0:
            self._begin(module, inputs, given)
        elif self._pass is not None and self._pass.nothing_given and _is_data(given):
            self._pass.inputs = _kept(given)
        self._depth += 1
        if self._pass is not None:
            _look_at(self._pass, module)

    def _begin(self, module: nn.Module, inputs: tuple[Any, ...], given: Tensor | None) -> None:
        self._drawn = _generator_state(given)
        self._network = any(True for _ in module.parameters())
        if given is not None and given.grad_fn is not None:
            self._pass = self.since[-1] if self.since else None
        elif self._network:
            autocast = torch.is_autocast_enabled("cpu" if given is None else given.device.type)
            self._pass = ForwardPass(module, _kept(given), autocast=autocast)
            self._pass.given = max(1, sum(1 for _ in tensors_in(inputs)))
            self._begins(module)
            if hasattr(module, COMPILED):  # nothing inside of it is heard
                for each in module.modules():
                    _look_at(self._pass, each)

    def left(self, module: nn.Module, output: Any) -> None:
        """A module has given what it makes."""
        if self._depth == 0:
            return
        self._depth -= 1
        if self._depth:
            return
        begun, self._pass = self._pass, None
        outputs = [tensor for tensor in tensors_in((output,)) if tensor.requires_grad]
        if begun is not None and begun.nothing_given:
            return  # no more than its weights can be in what came out
        if self._network:
            mark_as_network_output(outputs)
        if begun is None or not outputs:
            return
        begun.drew = begun.drew or not _same(self._drawn, _generator_state(begun.inputs))
        if self._network:
            begun.logits = [tensor.detach() for tensor in outputs if tensor.dim() == 2]
        if not any(begun is each for each in self.since):
            self.since.append(begun)
            self._ends(begun, outputs)


def _kept(given: Tensor | None) -> Tensor | None:
    """A copy, since a batch may be overwritten before the step is taken."""
    return None if given is None else given.detach().clone()


def _is_data(given: Tensor | None) -> bool:
    """Whether it is neither a weight nor made of any."""
    return given is not None and given.grad_fn is None and not isinstance(given, nn.Parameter)


def _look_at(begun: ForwardPass, module: nn.Module) -> None:
    if isinstance(module, _BatchNorm):
        # Without running statistics those of the batch are used in every mode.
        begun.batch_norm.add(module.training or module.running_mean is None)
    if isinstance(module, RANDOM) and module.training and module.p > 0:
        begun.dropout = True


def _generator_state(given: Tensor | None) -> Tensor:
    """That of the generator which a network draws from where its inputs are."""
    return torch.cuda.get_rng_state(given.device) if given is not None and given.is_cuda else torch.get_rng_state()


def _same(one: Tensor | None, other: Tensor) -> bool:
    return one is not None and one.shape == other.shape and torch.equal(one, other)


def tensors_in(values: Iterable[Any]) -> Iterator[Tensor]:
    """The tensors among arguments or results, also within lists and dictionaries."""
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from tensors_in(value)
        elif isinstance(value, Mapping):
            yield from tensors_in(value.values())
