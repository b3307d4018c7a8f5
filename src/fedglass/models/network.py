"""A network as a pure function of its weights, cheap enough for the innermost loop.

Parts that networks share: layers by name, the first ones (without strides for thumbnails), and the global mean.
"""

from __future__ import annotations

import copy
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase
from torch.nn.parameter import is_lazy
from torch.overrides import TorchFunctionMode

from fedglass.core.errors import ModelError
from fedglass.core.tensors import COUNTER, MEAN, VARIANCE, Params
from fedglass.core.types import BatchNorm

_FUSED = (F.scaled_dot_product_attention, F.multi_head_attention_forward)
"""PyTorch's own attention, whose fused kernels have no second derivative."""


OnCall = Callable[[Any, tuple[Any, ...], Mapping[str, Any], Any], None]
"""A listener: it receives the function, its arguments and options, and its result."""


LayerCall = tuple[str, Tensor, Tensor]
"""The name of a layer, an input and the output of the layer for it."""


@contextmanager
def calls_of(layers: Mapping[str, nn.Module]) -> Iterator[list[LayerCall]]:
    """Collect the calls of layers within the block, in their order."""
    calls: list[LayerCall] = []

    def noting(name: str) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], None]:
        return lambda layer, arguments, output: calls.append((name, arguments[0], output))

    with ExitStack() as hooks:
        for name, layer in layers.items():
            hooks.enter_context(layer.register_forward_hook(noting(name)))
        yield calls


def inputs_of_single(calls: Sequence[LayerCall]) -> dict[str, Tensor]:
    """Return the input of each layer that was called once, in the order of the calls."""
    count = Counter(name for name, _, _ in calls)
    return {name: inputs for name, inputs, _ in calls if count[name] == 1}


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


class Network:
    """logits = f(weights, inputs), for any module, under autograd as well as under torch.func.

    The module is copied once, its parameters are not. A call puts the tensors where the copy's layers look their
    parameters up, which costs a dictionary write each where `torch.func.functional_call` costs tens of microseconds.
    The copy keeps the last weights until the next call, so one network serves one thread.

    >>> import torch
    >>> network = Network(nn.Linear(2, 1), {}, BatchNorm.FROZEN)
    >>> network.names
    ('weight', 'bias')
    >>> network([torch.tensor([[1.0, 2.0]]), torch.tensor([0.5])], torch.ones(1, 2))
    tensor([[3.5000]])
    """

    def __init__(
        self, model: nn.Module, buffers: Params, batch_norm: BatchNorm, device: torch.device | None = None
    ) -> None:
        """`device` is where its calls compute; by default where the buffers are."""
        self._module = _shared_copy(model).eval()
        self._names, self._ties = _slots(self._module)
        _load_buffers(self._module, buffers)
        if device is not None:
            for layer in self._module.modules():  # its parameters are placeholders for the weights of a call
                layer._buffers.update({n: b.to(device) for n, b in layer._buffers.items() if b is not None})
        if batch_norm is BatchNorm.BATCH:
            _use_batch_statistics(self._module)
        self._owners = {name: _owner(self._module, name) for name in self._names}
        self._places = list(self._owners.values())
        self._recurrent = [m for m in self._module.modules() if isinstance(m, nn.RNNBase)]
        self._head: nn.Linear | None = None
        self._attends: bool | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """The parameters in the order in which a call takes them: that of `named_parameters`."""
        return tuple(self._names)

    def __call__(self, weights: Sequence[Tensor], inputs: Tensor) -> Tensor:
        """Return the logits.  # (n, c, h, w) -> (n, classes)"""
        if len(weights) != len(self._places):
            raise ModelError(
                f"The network has {len(self._places)} parameters, got {len(weights)} tensors: "
                "give one for each of its names, in that order."
            )
        # Written on every call: comparing with what is there costs as much, and a list may have been edited.
        for (parameters, name), tensor in zip(self._places, weights, strict=True):
            parameters[name] = tensor
        for parameters, name, index in self._ties:
            parameters[name] = weights[index]
        for layer in self._recurrent:  # these read a list of their own, made when they were built
            layer._flat_weights = [getattr(layer, name) for name in layer._flat_weights_names]
        try:
            return cast(Tensor, self._module(inputs)) if self._attends is False else self._attend(inputs)
        except ValueError as error:  # torch's word for batch statistics of one value per channel
            raise ModelError(f"The network refuses a batch of {len(inputs)}: {error}") from error

    def _attend(self, inputs: Tensor) -> Tensor:
        """Run a pass with unfused attention; the first pass finds out if later ones need it."""
        with sdpa_kernel(SDPBackend.MATH):  # from matrix products; entering it takes microseconds
            if self._attends:
                return cast(Tensor, self._module(inputs))
            called = list[bool]()
            with FunctionListener(lambda function, *_: called.append(function in _FUSED)):
                logits = cast(Tensor, self._module(inputs))
        self._attends = any(called)
        return logits

    def features(self, weights: Sequence[Tensor], inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Return the logits and the input of the last dense layer.  # (n, classes), (n, hidden)"""
        layers = dict(self._dense())
        with calls_of(layers) as calls:
            logits = self(weights, inputs)
        if not calls:
            raise _no_head()
        name, hidden, _ = calls[-1]
        self._head = layers[name]
        return logits, hidden

    def statistics(self, weights: Sequence[Tensor], inputs: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
        """Return mean and unbiased variance of the inputs of each BatchNorm layer that runs once, by the layer's name.

        Running statistics move towards them in a training step.  # (channels,) each
        """
        with calls_of({name: m for name, m in self._module.named_modules() if isinstance(m, _BatchNorm)}) as calls:
            self(weights, inputs)
        return {name: _moments(of_layer) for name, of_layer in inputs_of_single(calls).items()}

    @property
    def head(self) -> tuple[str, str | None]:
        """The names of the last dense layer's weight and bias (None if it has no bias).

        It is the last one registered, or the last one executed as soon as `features` has run a pass.
        """
        layers = list(self._dense())
        if not layers:
            raise _no_head()
        chosen = self._head if self._head is not None else layers[-1][1]
        name = next(name for name, layer in layers if layer is chosen)
        if chosen._parameters.get("weight") is None:
            raise ModelError(
                "The network's last dense layer is not trained, so no message holds its update, which this method "
                'reads: choose an attack that does not read labels there, such as name = "dlg".'
            )
        return self._canonical(name, "weight"), (
            None if chosen._parameters.get("bias") is None else self._canonical(name, "bias")
        )

    def _dense(self) -> Iterator[tuple[str, nn.Linear]]:
        return ((name, m) for name, m in self._module.named_modules() if isinstance(m, nn.Linear))

    def _canonical(self, module: str, parameter: str) -> str:
        """Return the name of a parameter in `named_parameters`, also if it is tied to an earlier one."""
        full = f"{module}.{parameter}" if module else parameter
        if full in self._owners:
            return full
        place, _ = _owner(self._module, full)
        return self._names[next(i for p, name, i in self._ties if p is place and name == parameter)]


def _shared_copy(model: nn.Module) -> nn.Module:
    """Copy the module with its buffers; its parameters, which every call replaces, share the model's memory."""
    # The memo of `deepcopy`: these count as copied. Parameters that have no shape yet cannot be shared.
    shared = {id(p): nn.Parameter(p.detach(), requires_grad=False) for p in model.parameters() if not is_lazy(p)}
    return copy.deepcopy(model, shared).requires_grad_(False)


def _moments(inputs: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and variance over all dimensions but that of the channels."""
    values = inputs.transpose(0, 1).flatten(1)
    return values.mean(1), values.var(1) if values.shape[1] > 1 else torch.zeros_like(values[:, 0])


_Place = tuple[dict[str, Tensor], str]


def _owner(module: nn.Module, name: str) -> _Place:
    """Return the dictionary in which the layer of that name looks its parameter up."""
    path, _, last = name.rpartition(".")
    return cast(dict[str, Tensor], module.get_submodule(path)._parameters), last


def _slots(module: nn.Module) -> tuple[list[str], list[tuple[dict[str, Tensor], str, int]]]:
    """Return the parameter names, and for tied parameters their further places with the index of the first."""
    names: list[str] = []
    first: dict[int, int] = {}
    ties: list[tuple[dict[str, Tensor], str, int]] = []
    for name, parameter in module.named_parameters(remove_duplicate=False):
        if id(parameter) in first:
            place, last = _owner(module, name)
            ties.append((place, last, first[id(parameter)]))
        else:
            first[id(parameter)] = len(names)
            names.append(name)
    return names, ties


def _load_buffers(module: nn.Module, buffers: Params) -> None:
    expected_buffers = dict(module.named_buffers())
    needed = [n for n in module.state_dict() if n in expected_buffers and expected_buffers[n].is_floating_point()]
    missing = [name for name in needed if name not in buffers]
    if missing:
        raise ModelError(
            f"The buffer {missing[0]!r} of the network is missing: give the running statistics of its "
            "normalisation layers together with the weights."
        )
    for name, tensor in buffers.items():
        if name not in expected_buffers or expected_buffers[name].shape != tensor.shape:
            expected = (
                f"shape {tuple(expected_buffers[name].shape)}"
                if name in expected_buffers
                else f"one of {sorted(expected_buffers)[:3]}"
            )
            raise ModelError(
                f"The buffer {name!r} of shape {tuple(tensor.shape)} does not fit the network, expected "
                f"{expected}: check that both come from the same architecture."
            )
        path, _, last = name.rpartition(".")
        module.get_submodule(path)._buffers[last] = tensor.detach().clone()


def _use_batch_statistics(module: nn.Module) -> None:
    """Remove the running statistics, so that layers use those of the batch and update none."""
    for layer in module.modules():
        if isinstance(layer, _NormBase):
            layer.train()
            layer.track_running_stats = False
            for name in (MEAN, VARIANCE, COUNTER):
                layer._buffers[name] = None


def _no_head() -> ModelError:
    return ModelError(
        "The network has no dense layer (nn.Linear), which this method reads: choose a network that ends in one."
    )


Shape = tuple[int, int, int]
"""Channels, height and width of one input."""


SMALL_SIDE = 64
"""Pixels of the longer side up to which the first layers keep the resolution."""


def is_small(shape: Shape) -> bool:
    """Return whether an input is a thumbnail, whose resolution the first layers keep.

    >>> is_small((3, 32, 32)), is_small((3, 224, 160))
    (True, False)
    """
    return max(shape[1:]) <= SMALL_SIDE


def first_convolution(shape: Shape, width: int) -> nn.Conv2d:
    """Return a convolution of 3x3 with stride 1, or of 7x7 with stride 2 [He et al., 2016]."""
    if is_small(shape):
        return nn.Conv2d(shape[0], width, kernel_size=3, padding=1, bias=False)
    return nn.Conv2d(shape[0], width, kernel_size=7, stride=2, padding=3, bias=False)


def first_pool(shape: Shape) -> nn.Module:
    """Return no pooling, or the maximum over 3x3 with stride 2 [He et al., 2016]."""
    return nn.Identity() if is_small(shape) else nn.MaxPool2d(kernel_size=3, stride=2, padding=1)


def layers(**named: nn.Module) -> nn.Sequential:
    """Return the layers one after another; their parameters have their names, also in weights files."""
    return nn.Sequential(OrderedDict(named))


def network(title: str, **named: nn.Module) -> nn.Module:
    """Return a network of these layers; reports call it by its title."""
    sequence = layers(**named)
    vars(sequence)["network_title"] = title
    return sequence


def title_of(model: nn.Module) -> str:
    """Return what reports call a network: its title, or the name of its class."""
    return str(vars(model).get("network_title", type(model).__name__))


class GlobalMean(nn.Module):
    """The mean over all places of a map.  # (n, c, h, w) -> (n, c)"""

    def forward(self, maps: Tensor) -> Tensor:
        return maps.mean((2, 3))


def output_size(body: Callable[[Tensor], Tensor], shape: Shape) -> int:
    """Return the number of values that the body makes of one input of that shape.

    >>> output_size(nn.AvgPool2d(2), (3, 32, 20))
    480
    """
    with torch.no_grad():
        return int(body(torch.zeros(1, *shape)).numel())
