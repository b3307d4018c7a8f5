"""A network cut at one of its layers: the front that feeds the layer, and the head that its outputs go through.

The gradients of the head depend only on the layer's inputs and the labels. Inputs and labels are therefore verified by
a replay of the head on them, without any image.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _NormBase

from fedglass.attack.exact.dense import DenseUpdate, evaluation_copy, hook, undecayed_update
from fedglass.attack.exact.update_matrix import entry_error
from fedglass.attack.exact.verify import MOST_OF_SEVERAL, ROUNDING_FACTOR, SUMMATION_ERROR
from fedglass.attack.labels.counts import smoothing_of
from fedglass.core.tensors import Params
from fedglass.core.types import BatchNorm, Observation

UNCHANGED = 1e-9
"""Relative change of the logits, in double precision, up to which they do not depend on the changed input."""
LEAST_SQUARES_PASSES = 3
"""Least-squares passes over all rows once all inputs are found; the error does not fall after the second."""
SAME_EXAMPLE = 0.05
"""Inputs closer than this, relative to their size, belong to one example."""


class _Reached(Exception):
    """Ends a forward pass at the layer of the cut."""


@dataclass(frozen=True, eq=False)
class Cut:
    """A network at the weights before training, in one precision, cut at a layer."""

    model: nn.Module
    state: Params
    layer: str
    shape: tuple[int, int, int]

    def front(self, inputs: Tensor) -> Tensor:
        """Return the inputs of the layer.  # (n, c, h, w), whitened -> (n, ...)"""
        reached: list[Tensor] = []

        def note(layer: nn.Module, arguments: tuple[Tensor, ...]) -> None:
            reached.append(arguments[0])
            raise _Reached

        with hook(self.model.get_submodule(self.layer).register_forward_pre_hook(note)), suppress(_Reached):
            functional_call(self.model, dict(self.state), (inputs,))
        return reached[0]

    def outputs(self, inputs: Tensor) -> dict[str, Tensor]:
        """Return the output of each layer without children that runs before this layer.  # (n, c, h, w), whitened"""
        output_by_layer: dict[str, Tensor] = {}

        def noting(name: str) -> Callable[..., None]:
            return lambda layer, arguments, output: output_by_layer.update({name: output})

        leaves = [(name, layer) for name, layer in self.model.named_modules() if not list(layer.children())]
        with ExitStack() as hooks:
            for name, layer in leaves:
                hooks.enter_context(hook(layer.register_forward_hook(noting(name))))
            self.front(inputs)
        return output_by_layer

    def between(self, outputs: Tensor, after: str) -> Tensor:
        """Return the inputs of another layer if this layer's outputs are these.  # (n, units) -> (n, ...)"""
        with hook(self.model.get_submodule(self.layer).register_forward_hook(lambda *passed: outputs)):
            return replace(self, layer=after).front(outputs.new_zeros(1, *self.shape))

    def head(self, outputs: Tensor, state: Params | None = None, blank: Tensor | None = None) -> Tensor:
        """Return the logits if the layer's outputs are these, for any blank image.  # (n, units)"""
        image = outputs.new_zeros(1, *self.shape) if blank is None else blank
        with hook(self.model.get_submodule(self.layer).register_forward_hook(lambda *passed: outputs)):
            logits: Tensor = functional_call(self.model, dict(self.state if state is None else state), (image,))
        return logits

    def headed(self) -> bool:
        """Return True if the logits depend on the image only through this layer, each example on its own row."""
        draws = torch.Generator().manual_seed(0)
        like = next(iter(self.state.values()))
        weight = self.model.get_submodule(self.layer).get_parameter("weight")
        outputs = torch.randn(3, weight.shape[0], generator=draws).to(like)
        other = torch.randn(1, *self.shape, generator=draws).to(like)
        with torch.no_grad():
            try:
                logits, same = self.head(outputs), self.head(outputs, blank=other)
                lone = self.head(outputs[1:2])
            except (RuntimeError, ValueError, IndexError):
                return False
        close = logits.shape == same.shape and nearly_equal(logits, same)
        return close and logits.shape[0] == 3 and nearly_equal(logits[1:2], lone)


def cut_at(observation: Observation, layer: str, kind: torch.dtype = torch.float64) -> Cut:
    """Return the network cut at the layer of that name, with weights and buffers of this type."""
    model, tensors = evaluation_copy(observation)
    state = {name: t.detach().to(kind) if t.is_floating_point() else t for name, t in tensors.items()}
    return Cut(model.requires_grad_(False).to(kind), state, layer, observation.knows.shape)


def mixes_examples(observation: Observation) -> str:
    """Return why no example has features of its own; empty if each has."""
    training = observation.knows.training
    normalised = any(isinstance(m, _NormBase) for m in observation.model.modules())
    if training is not None and training.batch_norm is BatchNorm.BATCH and normalised:
        return "normalisation by batch statistics mixes the examples before the layer"
    return ""


def nearly_equal(one: Tensor, other: Tensor) -> bool:
    """Return True if two results of double precision are equal up to rounding."""
    return bool((one - other).norm() <= UNCHANGED * one.norm())


@dataclass(frozen=True, eq=False)
class Features:
    """The inputs of a dense layer, example by example."""

    inputs: Tensor  # (n, d), double
    labels: Tensor  # (n,)
    residual: float
    """Relative residual of the head's update after a replay of the head on them."""
    verified: bool
    """True if they are as many as the examples, and the residual is rounding."""


def head_gradients(observation: Observation, layer: DenseUpdate, cut: Cut, inputs: Tensor) -> Tensor:
    """Return the loss gradient at the layer's outputs for every input and every label.  # (n, d) -> (n, k, h)"""
    outputs = (inputs @ layer.weight_before.T + layer.bias_before).requires_grad_()
    with torch.enable_grad():
        logits = cut.head(outputs)  # (n, k)
        slopes = [torch.autograd.grad(column.sum(), outputs, retain_graph=True)[0] for column in logits.unbind(1)]
    jacobian = torch.stack(slopes, 1)  # (n, k, h)
    smoothing = smoothing_of(observation)
    shared = logits.detach().softmax(1) - smoothing / logits.shape[1]  # the part that all labels share
    return (shared[:, :, None] * jacobian).sum(1, keepdim=True) - (1 - smoothing) * jacobian


def gradients_at(observation: Observation, layer: DenseUpdate, cut: Cut, inputs: Tensor, labels: Tensor) -> Tensor:
    """Return the loss gradient at the layer's outputs for each input with its label.  # (n, d), (n,) -> (n, h)"""
    return head_gradients(observation, layer, cut, inputs)[torch.arange(len(labels)), labels]


def refine_inputs(observation: Observation, layer: DenseUpdate, cut: Cut, inputs: Tensor, labels: Tensor) -> Tensor:
    """Return the inputs of all examples by least squares from all rows, from a first estimate.  # (n, d)"""
    for _ in range(LEAST_SQUARES_PASSES):
        gradients = gradients_at(observation, layer, cut, inputs, labels)
        solved = torch.linalg.pinv(gradients.T) @ layer.stacked().matrix  # (n, d + 1)
        fresh = solved[:, :-1] / solved[:, -1:]
        if not bool(((fresh - inputs).norm(dim=1) < SAME_EXAMPLE * inputs.norm(dim=1)).all()):
            break  # gradients are nearly dependent: the estimate is better
        inputs = fresh
    return inputs


def verify_features(observation: Observation, layer: DenseUpdate, cut: Cut, inputs: Tensor, labels: Tensor) -> Features:
    """Return the features with the residual of the head's update after a replay of the head on them."""
    names = {id(p): name for name, p in observation.model.named_parameters()}
    module = observation.model.get_submodule(layer.name)
    weight, bias = (names[id(module.get_parameter(last))] for last in ("weight", "bias"))
    trained = {n: t.clone().requires_grad_() for n, t in cut.state.items() if n in observation.update}
    with torch.enable_grad():
        logits = cut.head(F.linear(inputs, trained[weight], trained[bias]), {**cut.state, **trained})
        objective = observation.knows.objective
        if objective is None:
            loss = F.cross_entropy(logits, labels, label_smoothing=smoothing_of(observation))
        else:
            loss = objective.value(logits, labels)
        gradients = torch.autograd.grad(loss, list(trained.values()), allow_unused=True)
    predicted = {n: -g for n, g in zip(trained, gradients, strict=True) if g is not None}
    sent = {name: undecayed_update(observation, name) for name in predicted}
    steps = observation.knows.local_steps or 1
    errors = {name: entry_error(observation.update[name], observation.before[name], steps) for name in sent}
    moved, replayed, error = (torch.cat([t.flatten() for t in p.values()]) for p in (sent, predicted, errors))
    # The best multiple of the prediction is subtracted.
    residual = float((moved - (moved @ replayed) / (replayed @ replayed) * replayed).norm() / moved.norm())
    expected = ROUNDING_FACTOR * float(error.norm() / moved.norm()) + SUMMATION_ERROR
    complete = len(inputs) == observation.knows.examples and residual <= min(MOST_OF_SEVERAL, expected)
    return Features(inputs, labels, residual, complete)
