"""Dense layers and their updates: the update of a dense layer is a sum of outer products with the layer's inputs.

With inputs X (b, d) and the loss gradient D (h, b) at the layer's outputs, the weight moves along U = D X and the bias
along v = D 1, for any number of SGD steps on the same inputs: the factors of the steps add up in D.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedglass.attack.exact.method import Search, once
from fedglass.attack.exact.rows import Rows, entry_error, one_input, row_ratios, spectrum, stacked
from fedglass.attack.exact.sparse import Accept, Layer, sparse_inputs
from fedglass.core.optimisers import SGD, Move
from fedglass.core.rng import stream
from fedglass.core.types import Observation

__all__ = ["DenseInputs", "DenseUpdate", "Rows", "dense_inputs", "dense_layers", "first_dense", "row_ratios"]

NOT_FED = "no dense layer is fed the pixels as they are"
PROBES = 8
"""Random inputs by which a network is looked at: eight rows of noise leave no unit of a ReLU layer always positive."""


@dataclass(frozen=True, eq=False)
class DenseUpdate:
    """What one dense layer sent, in double precision, with the weight decay of the declared training taken off."""

    name: str
    """The layer's name in the network."""
    weight: Tensor  # (h, d), after - before
    bias: Tensor | None  # (h,); None where the layer has no bias, or does not train it
    weight_before: Tensor  # (h, d)
    bias_before: Tensor | None  # (h,)
    weight_error: Tensor  # (h, d), the rounding that each entry can have
    bias_error: Tensor | None  # (h,)
    relu: bool = False
    """Whether all that follows depends on max(0, output) alone."""
    after: tuple[Tensor, Tensor] | None = None
    """Weight (h, d) and bias (h,) after training, where there is a bias."""
    shrunk: float = 0.0
    """The share of the weights before that the decay took: what was added to the update for it."""


@dataclass(frozen=True, eq=False)
class DenseInputs:
    """Candidates for the inputs of a dense layer."""

    inputs: Tensor  # (m, d), double
    votes: Tensor  # (m,), how many rows gave each of them; 0 for those that inactive units prove
    rank: int
    """The number of independent inputs that the update has."""
    complete: bool
    """Whether the inputs, as many as the rank, explain the whole update at rounding level, activations included."""
    residual: float
    """Relative size of what they leave unexplained of the update."""
    details: Mapping[str, float | int | str]
    guesses: Tensor | None = None  # (b, d)
    """Inputs of a search that ended without a proof: as many as there are examples, some of them mixtures."""


@once
def first_dense(observation: Observation) -> DenseUpdate | str:
    """Return the update of the dense layer that is fed the whitened pixels, or a sentence that says why there is none.

    The network is run on noise: wrappers such as nn.Flatten or a reshape in `forward` do not matter.
    """
    unusual = _unusual_optimiser(observation)
    if unusual:
        return unusual
    pixels, layers = math.prod(observation.knows.shape), observation.model.modules()
    if not any(isinstance(layer, nn.Linear) and layer.in_features == pixels for layer in layers):
        return NOT_FED
    try:
        calls = _calls(observation)
    except (RuntimeError, TypeError, ValueError) as error:
        return f"the network does not run on a random input: {str(error).splitlines()[0]}"
    images, found = calls
    for name, given in found.items():
        if given.ndim == 2 and torch.equal(given, images.flatten(1)):
            update = _update_of(observation, name)
            return update if isinstance(update, str) else replace(update, relu=_is_relu(observation, name, images))
    return NOT_FED


@once
def dense_layers(observation: Observation) -> list[DenseUpdate]:
    """Return the updates of all dense layers that train a weight and a bias and run once, in the order of execution."""
    if _unusual_optimiser(observation):
        return []
    images, found = _calls(observation)
    updates = [(name, _update_of(observation, name)) for name, given in found.items() if given.ndim == 2]
    return [
        replace(update, relu=_is_relu(observation, name, images))
        for name, update in updates
        if not isinstance(update, str) and update.bias is not None
    ]


def dense_inputs(
    update: Tensor,
    bias: Tensor,
    weight_before: Tensor,
    bias_before: Tensor,
    count: int,
    search: Search,
    error: tuple[Tensor, Tensor] | None = None,
    relu: bool = True,
    after: tuple[Tensor, Tensor] | None = None,
    steps: int | None = None,
    accept: Accept | None = None,
) -> DenseInputs:
    """Return candidates for the inputs of a dense layer: by division, by rows that agree, and by SPEAR behind a ReLU.

    `count` is the number of examples. `error` is the rounding of the update's and the bias's entries; where it is
    left out it is taken from their types. Units that are on before and off `after`, or the reverse, may be both; with
    several `steps` others may be so too, and `accept` can say that inputs explain the message all the same.
    # update (h, d), bias (h,); after: weight (h, d) and bias (h,)
    """
    errors = error or (entry_error(update, weight_before), entry_error(bias, bias_before))
    if count == 1:
        found = one_input(stacked(update, bias, *errors, pruned=True))
        told: dict[str, float | int | str] = {"rows": found.votes, "rank": 1}
        return DenseInputs(found.inputs[None], torch.tensor([found.votes]), 1, found.clean, found.residual, told)
    sent, rows = stacked(update, bias, *errors), row_ratios(update, bias, errors)
    clear = spectrum(sent, count)
    told = {"rank": clear.rank, "groups": len(rows.inputs)}
    if relu and clear.rank == count:
        layer = Layer((weight_before.double(), bias_before.double()), after, steps)
        solved = sparse_inputs(sent, clear, layer, torch.cat([rows.inputs, rows.ratios]), search, accept)
        told |= solved.details
        guesses = solved.guesses if len(solved.guesses) else None
        if len(solved.inputs) or guesses is not None:
            votes = torch.zeros(len(solved.inputs), dtype=torch.int64)
            return DenseInputs(solved.inputs, votes, count, solved.complete, solved.residual, told, guesses)
    return DenseInputs(rows.inputs[:count], rows.votes[:count], clear.rank, False, rows.residual, told)


def decay_factor(observation: Observation) -> float:
    """Return a: what a weight is multiplied by over the declared training where its gradients are zero."""
    training, steps = observation.knows.training, observation.knows.local_steps
    if training is None or steps is None:
        return 1.0
    weights, lr = [torch.ones((), dtype=torch.float64)], training.lr
    state = training.optimiser.init(weights)
    for _ in range(steps):
        weights, state = training.optimiser.step(Move(weights, [torch.zeros_like(weights[0])], state, lr))
    return float(weights[0])


def _unusual_optimiser(observation: Observation) -> str:
    training = observation.knows.training
    if training is None or isinstance(training.optimiser, SGD):
        return ""
    return f"{type(training.optimiser).__name__} sends no multiple of a gradient"


def _update_of(observation: Observation, layer: str) -> DenseUpdate | str:
    """The update of a layer, with the decay taken off: w_T = a w_0 + what the gradients add."""
    weight, bias = (_parameter(observation, layer, last) for last in ("weight", "bias"))
    if weight is None or weight not in observation.update:
        return f"the dense layer {layer!r} is not trained"
    shrunk = 1 - decay_factor(observation)
    before, sent = observation.before, observation.update
    told = bias if bias is not None and bias in sent else None
    constant = observation.buffers.get(f"{layer}.bias" if layer else "bias") if bias is None else before.get(bias)
    bias_before = None if constant is None else constant.double().cpu()

    def moved(name: str) -> Tensor:
        return sent[name].double().cpu() + shrunk * before[name].double().cpu()

    def error(name: str) -> Tensor:
        return entry_error(sent[name], before[name], observation.knows.local_steps or 1)

    def after(name: str) -> Tensor:
        return before[name].double().cpu() + sent[name].double().cpu()

    last = bias_before if told is None else after(told)
    return DenseUpdate(
        layer,
        moved(weight),
        None if told is None else moved(told),
        before[weight].double().cpu(),
        bias_before,
        error(weight),
        None if told is None else error(told),
        after=None if last is None else (after(weight), last),
        shrunk=shrunk,
    )


def _parameter(observation: Observation, layer: str, last: str) -> str | None:
    """The name under which the message has a layer's parameter, also where it is tied to an earlier one."""
    module = observation.model.get_submodule(layer)
    parameter = module._parameters.get(last)
    names = {id(p): name for name, p in observation.model.named_parameters()}
    return None if parameter is None else names.get(id(parameter))


def _calls(observation: Observation) -> tuple[Tensor, dict[str, Tensor]]:
    """Noise, and what each dense layer that runs once is fed by it, in the order of execution."""
    model, state = _evaluated(observation)
    images = _noise(observation)
    seen: dict[str, list[Tensor]] = {}

    def noting(name: str) -> Callable[..., None]:
        return lambda layer, arguments: seen.setdefault(name, []).append(arguments[0].detach())

    layers = [(name, layer) for name, layer in model.named_modules() if isinstance(layer, nn.Linear)]
    for name, layer in layers:
        layer.register_forward_pre_hook(noting(name))
    with torch.no_grad():
        functional_call(model, state, (images,))
    return images, {name: given[0] for name, given in seen.items() if len(given) == 1}


def _is_relu(observation: Observation, layer: str, images: Tensor) -> bool:
    """Whether the logits stay the same, bit for bit, where the layer's outputs are cut at zero, and depend on them."""
    model, state = _evaluated(observation)
    negative: list[bool] = []

    def answer(change: Callable[[Tensor], Tensor]) -> Tensor:
        def hook(module: nn.Module, given: object, output: Tensor) -> Tensor:
            negative.append(bool((output < 0).any()))
            return change(output)

        handle = model.get_submodule(layer).register_forward_hook(hook)
        try:
            with torch.no_grad():
                logits: Tensor = functional_call(model, state, (images,))
        finally:
            handle.remove()
        return logits

    plain, cut, none = answer(lambda z: z), answer(lambda z: z.clamp(min=0)), answer(torch.zeros_like)
    return any(negative) and torch.equal(plain, cut) and not torch.equal(plain, none)


def _evaluated(observation: Observation) -> tuple[nn.Module, dict[str, Tensor]]:
    """A copy of the network in evaluation mode, and the weights and buffers that it is run with."""
    model = copy.deepcopy(observation.model).eval()
    known = dict(model.named_buffers())
    buffers = {name: tensor for name, tensor in observation.buffers.items() if name in known}
    return model, {**observation.before, **buffers}


def _noise(observation: Observation) -> Tensor:
    like = next(iter(observation.before.values()))
    draws = torch.randn(PROBES, *observation.knows.shape, generator=stream(0, "dense", "probe"))
    return draws.to(like)
