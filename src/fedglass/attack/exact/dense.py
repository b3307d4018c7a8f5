"""Dense layers and their updates: the update of a dense layer is a sum of outer products with the layer's inputs.

With inputs X (b, d) and the loss gradient D (h, b) at the layer's outputs, the weight moves along U = D X and the bias
along v = D 1, for any number of SGD steps on the same inputs: the factors of the steps add up in D.
"""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedglass.attack.exact.update_matrix import UpdateMatrix, entry_error, stack_update
from fedglass.core.optimisers import SGD, Move
from fedglass.core.rng import stream
from fedglass.core.types import Observation
from fedglass.models.network import calls_of, inputs_of_single

T = TypeVar("T")
NO_PIXEL_LAYER = "no dense layer is fed the pixels as they are"
PROBES = 8
"""Random inputs that probe a network: eight rows of noise leave no unit of a ReLU layer always positive."""


def once(read: Callable[[Observation], T]) -> Callable[[Observation], T]:
    """Return the function with a cache of its results, which lasts as long as the observation lives."""
    results: WeakKeyDictionary[Observation, T] = WeakKeyDictionary()

    @functools.wraps(read)
    def remembered(observation: Observation) -> T:
        if observation not in results:
            results[observation] = read(observation)
        return results[observation]

    return remembered


@dataclass(frozen=True, eq=False)
class DenseUpdate:
    """The update of one dense layer, in double precision, without the weight decay of the declared training."""

    name: str
    """The layer's name in the network."""
    sent: UpdateMatrix
    """[U | v], after - before; only U if the layer has no bias, or does not train it."""
    before: Tensor  # [W | c] before training, (h, d + 1); c is zeros if the layer has no bias
    after: Tensor | None  # [W | c] after training, (h, d + 1)
    relu: bool
    """True if all that follows depends only on max(0, output)."""
    shrunk: float
    """The share of the weights before that the decay removed, and that was added to the update again."""

    @property
    def weight_before(self) -> Tensor:
        """W before training.  # (h, d)"""
        return self.before[:, :-1].contiguous()

    @property
    def bias_before(self) -> Tensor:
        """c before training.  # (h,)"""
        return self.before[:, -1].contiguous()


@once
def first_dense(observation: Observation) -> DenseUpdate | str:
    """Return the update of the dense layer that takes the whitened pixels, or the reason why it is no gradient."""
    return not_a_gradient(observation) or dense_update_at_pixels(observation)


@once
def dense_update_at_pixels(observation: Observation) -> DenseUpdate | str:
    """Return the update of the dense layer that takes the whitened pixels, or the reason why there is none.

    The network is run on noise: wrappers such as nn.Flatten or a reshape in `forward` do not matter.
    """
    pixels, layers = math.prod(observation.knows.shape), observation.model.modules()
    if not any(isinstance(layer, nn.Linear) and layer.in_features == pixels for layer in layers):
        return NO_PIXEL_LAYER
    try:
        images, input_by_layer = _layer_inputs(observation)
    except (RuntimeError, TypeError, ValueError) as error:
        return does_not_run(error)
    for name, inputs in input_by_layer.items():
        if inputs.ndim == 2 and torch.equal(inputs, images.flatten(1)):
            return _update_of(observation, name, images)
    return NO_PIXEL_LAYER


@once
def dense_layers(observation: Observation) -> list[DenseUpdate]:
    """Return the updates of all dense layers that train a weight and a bias and run once, in the order of execution."""
    if not_a_gradient(observation):
        return []
    images, input_by_layer = _layer_inputs(observation)
    names = [name for name, inputs in input_by_layer.items() if inputs.ndim == 2]
    updates = [_update_of(observation, name, images) for name in names]
    return [update for update in updates if not isinstance(update, str) and update.sent.biased]


def decay_factor(observation: Observation) -> float:
    """Return the factor to which the declared training shrinks a weight of 1 that has no gradient."""
    training, steps = observation.knows.training, observation.knows.local_steps
    if training is None or steps is None:
        return 1.0
    weights, lr = [torch.ones((), dtype=torch.float64)], training.lr
    state = training.optimiser.init(weights)
    for _ in range(steps):
        weights, state = training.optimiser.step(Move(weights, [torch.zeros_like(weights[0])], state, lr))
    return float(weights[0])


def undecayed_update(observation: Observation, name: str) -> Tensor:
    """Return the part of a tensor's update that its gradients made: w_T = a w_0 + this part."""
    shrunk = 1 - decay_factor(observation)
    return observation.update[name].cpu().double() + shrunk * observation.before[name].cpu().double()


def does_not_run(error: Exception) -> str:
    """Return the reason for a network that fails on noise."""
    return f"the network does not run on a random input: {str(error).splitlines()[0]}"


def not_a_gradient(observation: Observation) -> str:
    """Return why the update is not a multiple of a gradient; empty if it is."""
    training = observation.knows.training
    if training is None or isinstance(training.optimiser, SGD):
        return ""
    return f"{type(training.optimiser).__name__} does not send a multiple of a gradient"


def _update_of(observation: Observation, layer: str, images: Tensor) -> DenseUpdate | str:
    """Return the update of a layer without its decay, or the reason why there is none."""
    # A parameter may be tied to an earlier one, under whose name the message has it.
    names = {id(p): name for name, p in observation.model.named_parameters()}
    weight, bias = (
        names.get(id(observation.model.get_submodule(layer)._parameters.get(n))) for n in ("weight", "bias")
    )
    before, sent, steps = observation.before, observation.update, observation.knows.local_steps or 1
    if weight is None or weight not in sent:
        return f"the dense layer {layer!r} is not trained"
    constant = observation.buffers.get(f"{layer}.bias" if layer else "bias") if bias is None else before.get(bias)
    zeros = torch.zeros(len(before[weight]), dtype=torch.float64)
    trained = [name for name in (weight, bias) if name is not None and name in sent]
    errors = [entry_error(sent[name], before[name], steps) for name in trained]
    moved = stack_update([undecayed_update(observation, name) for name in trained], errors)
    start = torch.cat(
        [before[weight].cpu().double(), (zeros if constant is None else constant.cpu().double())[:, None]], 1
    )
    moves = [sent[name].cpu().double() for name in trained]
    after = start + torch.cat([moves[0], (moves[1] if len(moves) > 1 else zeros)[:, None]], 1)
    relu, shrunk = _is_relu(observation, layer, images), 1 - decay_factor(observation)
    return DenseUpdate(layer, moved, start, after, relu, shrunk)


def _layer_inputs(observation: Observation) -> tuple[Tensor, dict[str, Tensor]]:
    """Return noise images, and the inputs that they give to each dense layer that runs once, in order of execution."""
    model, state = evaluation_copy(observation)
    draws = torch.randn(PROBES, *observation.knows.shape, generator=stream(0, "dense", "probe"))
    images = draws.to(next(iter(observation.before.values())))
    layers = {name: layer for name, layer in model.named_modules() if isinstance(layer, nn.Linear)}
    with torch.no_grad(), calls_of(layers) as calls:
        functional_call(model, state, (images,))
    return images, inputs_of_single(calls)


def _is_relu(observation: Observation, layer: str, images: Tensor) -> bool:
    """Return True if the logits depend on the layer's outputs, but not on the size of negative ones."""
    model, state = evaluation_copy(observation)
    negative: list[bool] = []

    def answer(change: Callable[[Tensor], Tensor]) -> Tensor:
        def note(module: nn.Module, inputs: object, output: Tensor) -> Tensor:
            negative.append(bool((output < 0).any()))
            return change(output)

        with model.get_submodule(layer).register_forward_hook(note), torch.no_grad():
            logits: Tensor = functional_call(model, state, (images,))
        return logits

    plain, cut, none = answer(lambda z: z), answer(lambda z: z.clamp(min=0)), answer(torch.zeros_like)
    return any(negative) and torch.equal(plain, cut) and not torch.equal(plain, none)


def evaluation_copy(observation: Observation) -> tuple[nn.Module, dict[str, Tensor]]:
    """Return a copy of the network in evaluation mode, with its weights and buffers."""
    model = copy.deepcopy(observation.model).eval()
    buffer_names = dict(model.named_buffers())
    buffers = {name: tensor for name, tensor in observation.buffers.items() if name in buffer_names}
    return model, {**observation.before, **buffers}
