"""The one local-training loop: it trains the simulated client and is what an attack differentiates.

Everything is written on plain lists of tensors, in the order of `Network.names`, so that the same code
serves a client (nothing to differentiate) and `attack.forward.unroll` (everything to differentiate).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from fedglass.core.types import Training
from fedglass.models.network import Network


@dataclass(frozen=True, eq=False)
class Step:
    """All that a gradient function is told about one local step."""

    network: Network
    weights: Sequence[Tensor]
    """Leaves that require gradients, in the order of `network.names`."""
    inputs: Tensor  # (b, c, h, w), whitened
    targets: Tensor  # (b,) class indices or (b, classes) probabilities
    differentiable: bool = False
    """Whether the gradient itself is going to be differentiated."""
    generator: torch.Generator | None = None
    """The source of a defence's noise."""
    index: int = 0
    """The number of the local step in the client's training."""
    place: int = 0
    """The number of the batch within its epoch."""


class GradientFn(Protocol):
    """The gradient inside a local step; defences such as DP-SGD are other choices of it."""

    def gradient(self, step: Step) -> Sequence[Tensor]: ...


@dataclass(frozen=True)
class MeanGradient:
    """The gradient of the batch's mean cross entropy: plain SGD."""

    def gradient(self, step: Step) -> Sequence[Tensor]:
        loss = F.cross_entropy(step.network(step.weights, step.inputs), step.targets)
        # A parameter that the network does not use has the gradient zero.
        weights = list(step.weights)
        return torch.autograd.grad(loss, weights, create_graph=step.differentiable, materialize_grads=True)


@dataclass(frozen=True, eq=False)
class Batch:
    """The examples of one local step."""

    epoch: int
    rows: Tensor | slice
    """Which of the client's examples, in the order of training."""
    place: int = 0
    """The number of the batch within its epoch."""


def schedule(training: Training, examples: int, generator: torch.Generator | None) -> Iterator[Batch]:
    """The batches of a local training, shuffled anew in each epoch; in file order without a generator.

    >>> plan = Training(lr=0.1, epochs=2, batch_size=2)
    >>> [batch.rows for batch in schedule(plan, 3, None)]
    [slice(0, 2, None), slice(2, 3, None), slice(0, 2, None), slice(2, 3, None)]
    """
    for epoch in range(training.epochs):
        order = None if generator is None else torch.randperm(examples, generator=generator)
        for place, rows in enumerate(training.batches(examples)):
            yield Batch(epoch, rows if order is None else order[rows], place)


def descend(weights: Sequence[Tensor], gradient: Sequence[Tensor], lr: float) -> list[Tensor]:
    """One step of SGD: w - lr * g, as new leaves."""
    return [
        torch.sub(w.detach(), g.detach(), alpha=lr).requires_grad_() for w, g in zip(weights, gradient, strict=True)
    ]


def train(
    network: Network,
    before: Sequence[Tensor],
    inputs: Tensor,
    targets: Tensor,
    batches: Iterable[Batch],
    lr: float,
    gradient: GradientFn | None = None,
    noise: torch.Generator | None = None,
) -> list[Tensor]:
    """The weights after local training on whitened inputs [McMahan et al., 2017, Algorithm 1]."""
    rule = MeanGradient() if gradient is None else gradient
    weights = [w.detach().clone().requires_grad_() for w in before]
    for index, batch in enumerate(batches):
        inputs_now, targets_now = inputs[batch.rows], targets[batch.rows]
        step = Step(network, weights, inputs_now, targets_now, generator=noise, index=index, place=batch.place)
        weights = descend(weights, rule.gradient(step), lr)
    return [w.detach() for w in weights]
