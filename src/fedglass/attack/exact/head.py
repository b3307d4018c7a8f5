"""What follows a dense layer, the head: its gradients depend on the layer's inputs and the labels alone.

A choice of inputs and labels is verified by replaying the head on them, without any image.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from fedglass.attack.exact.cut import Cut
from fedglass.attack.exact.dense import DenseUpdate, decay_factor
from fedglass.attack.exact.rows import entry_error
from fedglass.attack.exact.verify import KERNELS, LEVEL, MOST
from fedglass.core.types import Observation

POLISHES = 3
"""Least-squares passes over all rows once all inputs are found; the error does not fall after the second."""
SAME = 0.05
"""Inputs closer than this, relative to their size, are one example's."""


@dataclass(frozen=True, eq=False)
class Features:
    """The inputs of a dense layer, example by example."""

    inputs: Tensor  # (n, d), double
    labels: Tensor  # (n,)
    residual: float
    """Relative size of what a replay of the head on them leaves unexplained of the head's update."""
    verified: bool
    """Whether they are as many as the examples, and the residual is rounding."""


def head_gradients(observation: Observation, layer: DenseUpdate, cut: Cut, inputs: Tensor) -> Tensor:
    """Return the loss gradient at the layer's outputs for every input and every label.  # (n, d) -> (n, k, h)"""
    assert layer.bias_before is not None, "a trained bias has a value before"
    outputs = (inputs @ layer.weight_before.T + layer.bias_before).requires_grad_()
    with torch.enable_grad():
        logits = cut.head(outputs)  # (n, k)
        slopes = [torch.autograd.grad(column.sum(), outputs, retain_graph=True)[0] for column in logits.unbind(1)]
    jacobian = torch.stack(slopes, 1)  # (n, k, h)
    smoothing = smoothing_of(observation)
    shared = logits.detach().softmax(1) - smoothing / logits.shape[1]  # what all labels have in common
    return (shared[:, :, None] * jacobian).sum(1, keepdim=True) - (1 - smoothing) * jacobian


def gradients_at(observation: Observation, layer: DenseUpdate, cut: Cut, inputs: Tensor, labels: Tensor) -> Tensor:
    """Return the loss gradient at the layer's outputs for each input with its label.  # (n, d), (n,) -> (n, h)"""
    return head_gradients(observation, layer, cut, inputs)[torch.arange(len(labels)), labels]


def sent_by(layer: DenseUpdate) -> Tensor:
    """Return [U | v] of a layer that has a bias.  # (h, d + 1)"""
    assert layer.bias is not None, "a layer without bias is refused before"
    return torch.cat([layer.weight, layer.bias[:, None]], 1)


def polished(observation: Observation, layer: DenseUpdate, cut: Cut, inputs: Tensor, labels: Tensor) -> Tensor:
    """Return the inputs of all examples by least squares from all rows, given those found so far.  # (n, d)"""
    for _ in range(POLISHES):
        gradients = gradients_at(observation, layer, cut, inputs, labels)
        solved = torch.linalg.pinv(gradients.T) @ sent_by(layer)  # (n, d + 1)
        fresh = solved[:, :-1] / solved[:, -1:]
        if not bool(((fresh - inputs).norm(dim=1) < SAME * inputs.norm(dim=1)).all()):
            break  # gradients that are nearly dependent: what was found is better
        inputs = fresh
    return inputs


def checked(observation: Observation, layer: DenseUpdate, cut: Cut, inputs: Tensor, labels: Tensor) -> Features:
    """Return the features with what a replay of the head on them leaves of its update."""
    names = {id(p): name for name, p in observation.model.named_parameters()}
    module = observation.model.get_submodule(layer.name)
    weight, bias = (names[id(module.get_parameter(last))] for last in ("weight", "bias"))
    trained = {n: t.clone().requires_grad_() for n, t in cut.state.items() if n in observation.update}
    with torch.enable_grad():
        logits = cut.head(F.linear(inputs, trained[weight], trained[bias]), {**cut.state, **trained})
        loss = F.cross_entropy(logits, labels, label_smoothing=smoothing_of(observation))
        gradients = torch.autograd.grad(loss, list(trained.values()), allow_unused=True)
    predicted = {n: -g for n, g in zip(trained, gradients, strict=True) if g is not None}
    shrunk = 1 - decay_factor(observation)
    sent = {n: observation.update[n].double() + shrunk * observation.before[n].double() for n in predicted}
    residual = _left(list(sent.values()), list(predicted.values()))
    expected = LEVEL * _rounding(observation, sent) + KERNELS
    whole = len(inputs) == observation.knows.examples and residual <= min(MOST, expected)
    return Features(inputs, labels, residual, whole)


def smoothing_of(observation: Observation) -> float:
    """Return the label smoothing of the declared training."""
    training = observation.knows.training
    return 0.0 if training is None else training.label_smoothing


def _rounding(observation: Observation, sent: Mapping[str, Tensor]) -> float:
    """The relative size of the rounding that these tensors of the message can have."""
    steps = observation.knows.local_steps or 1
    errors = [entry_error(observation.update[name], observation.before[name], steps).flatten() for name in sent]
    return float(torch.cat(errors).norm() / torch.cat([t.flatten() for t in sent.values()]).norm())


def _left(sent: Sequence[Tensor], predicted: Sequence[Tensor]) -> float:
    """The relative size of what the best multiple of a prediction leaves."""
    one, other = (torch.cat([t.flatten() for t in part]) for part in (sent, predicted))
    return float((one - (one @ other) / (other @ other) * other).norm() / one.norm())
