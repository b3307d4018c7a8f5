"""Functions of torch that show themselves to a listener while they compute what they always do."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils.hooks import RemovableHandle

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


MADE = "made by a network"
"""A mark of nodes of autograd's graph."""


class ShownFunctions(TorchFunctionMode):
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
def replaced_losses(called: Called) -> Iterator[None]:
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
def shown_roots(called: Callable[[Tensor], None]) -> Iterator[None]:
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


def mark_as_made(outputs: Iterable[Tensor]) -> None:
    """Remember in the graph itself, which is not kept alive by it, that these came out of a network."""
    for tensor in outputs:
        if tensor.grad_fn is not None:
            _marks(tensor.grad_fn)[MADE] = True


def _marks(node: Any) -> dict[str, object]:
    found: dict[str, object] = node.metadata
    return found


def weights_beside(root: Tensor) -> bool:
    """Whether weights are in what is minimised on another way than through what a network made."""
    todo, seen = [root.grad_fn], set()
    while todo:
        node = todo.pop()
        if node is None or node in seen or MADE in _marks(node):
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
