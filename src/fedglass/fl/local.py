"""The one local-training loop: it trains the simulated client and is what an attack differentiates.

Everything is written on plain lists of tensors, in the order of `Network.names`, so that the same code
serves a client (nothing to differentiate) and `attack.forward.unroll` (everything to differentiate).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from fedglass.core.losses import Loss
from fedglass.core.optimisers import Move, State
from fedglass.core.types import Training
from fedglass.models.network import Network

if TYPE_CHECKING:
    from fedglass.fl.canaries import CanaryExamples

CLIP_EPS = 1e-6
"""Added to the norm of a gradient that is clipped, as torch does."""


@dataclass(frozen=True, eq=False)
class Step:
    """One local step, as a gradient function sees it."""

    network: Network
    weights: Sequence[Tensor]
    """Leaves that require gradients, in the order of `network.names`."""
    inputs: Tensor  # (b, c, h, w), whitened
    targets: Tensor  # (b,) class indices or (b, classes) probabilities; other losses have others
    differentiable: bool = False
    """Whether the gradient itself is going to be differentiated."""
    generator: torch.Generator | None = None
    """The source of a defence's noise."""
    index: int = 0
    """The number of the local step in the client's training."""
    place: int = 0
    """The number of the batch within its epoch."""
    smoothing: float = 0.0
    """The share of each label that is spread evenly over all classes."""
    objective: Loss | None = None
    """The loss that the client trains on, if it is not the mean cross entropy."""
    canaries: CanaryExamples | None = None
    """Examples without an image, with which an auditor measures epsilon."""

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return the loss that the client trains on, of all or some of the step's examples."""
        if self.objective is not None:
            return self.objective.value(logits, targets)
        return F.cross_entropy(logits, targets, label_smoothing=self.smoothing)

    def sum_of_losses(self, logits: Tensor) -> Tensor:
        """Return the sum of the losses of the step's examples, each alone."""
        if self.objective is None:
            return self.loss(logits, self.targets) * len(self.inputs)
        rows = range(len(self.inputs))
        return torch.stack([self.loss(logits[i : i + 1], self.targets[i : i + 1]) for i in rows]).sum()


class GradientFn(Protocol):
    """The gradient inside a local step; defences such as DP-SGD are other choices of it."""

    def gradient(self, step: Step) -> Sequence[Tensor]: ...


@dataclass(frozen=True)
class MeanGradient:
    """The gradient of the batch's loss: no defence."""

    def gradient(self, step: Step) -> Sequence[Tensor]:
        loss = step.loss(step.network(step.weights, step.inputs), step.targets)
        # A parameter that the network does not use has the gradient zero.
        weights = list(step.weights)
        return torch.autograd.grad(loss, weights, create_graph=step.differentiable, materialize_grads=True)


@dataclass(frozen=True, eq=False)
class LocalBatch:
    """The examples of one local step."""

    epoch: int
    rows: Tensor | slice
    """Which of the client's examples, in the order of training."""
    place: int = 0
    """The number of the batch within its epoch."""


def schedule(training: Training, examples: int, generator: torch.Generator | None) -> Iterator[LocalBatch]:
    """Yield the batches of a local training, with a new shuffle in each epoch.

    The examples stay in file order without a generator, or if the training does not shuffle.

    >>> plan = Training(lr=0.1, batch_size=2, steps=3)
    >>> [batch.rows for batch in schedule(plan, 3, None)]
    [slice(0, 2, None), slice(2, 3, None), slice(0, 2, None)]
    """
    slices, steps = training.batches(examples), training.local_steps(examples)
    drawn = generator if training.shuffle else None
    for epoch in range(training.passes(examples)):
        order = None if drawn is None else torch.randperm(examples, generator=drawn)
        for place, rows in enumerate(slices[: steps - epoch * len(slices)]):
            yield LocalBatch(epoch, rows if order is None else order[rows], place)


@dataclass(frozen=True, eq=False)
class Waypoint:
    """The state of a local training between two steps."""

    weights: Sequence[Tensor]
    """Leaves that require gradients."""
    state: State
    """What the optimiser carries."""


def begin(training: Training, before: Sequence[Tensor]) -> Waypoint:
    """Return the waypoint before the first step."""
    weights = [w.detach().requires_grad_() for w in before]
    return Waypoint(weights, training.optimiser.init(weights))


def advance(training: Training, at: Waypoint, gradient: Sequence[Tensor]) -> Waypoint:
    """Take one step of the training's optimiser, to new leaves."""
    weights, state = training.optimiser.step(Move(at.weights, gradient, at.state, training.lr))
    return Waypoint([w.requires_grad_() for w in weights], state)


def local_gradient(rule: GradientFn, step: Step, clip: float | None) -> Sequence[Tensor]:
    """Return the gradient that a step moves along: the rule's gradient, clipped if the training clips."""
    gradient = rule.gradient(step)
    return gradient if clip is None else clipped(gradient, clip)


def clipped(gradient: Sequence[Tensor], most: float) -> list[Tensor]:
    """Return the gradient, scaled down if its norm over all parameters is above `most`.

    It is what torch.nn.utils.clip_grad_norm_ computes, and differentiable.

    >>> clipped([torch.tensor([3.0]), torch.tensor([4.0])], 1.0)
    [tensor([0.6000]), tensor([0.8000])]
    """
    norms = torch.stack([torch.linalg.vector_norm(g) for g in gradient])
    share = (most / (torch.linalg.vector_norm(norms) + CLIP_EPS)).clamp(max=1.0)
    return [g * share for g in gradient]


def path(
    network: Network,
    before: Sequence[Tensor],
    inputs: Tensor,
    targets: Tensor,
    batches: Iterable[LocalBatch],
    training: Training,
    gradient: GradientFn | None = None,
    noise: torch.Generator | None = None,
) -> Iterator[Waypoint]:
    """Yield the waypoints of a local training on whitened inputs, before the first step and after each step."""
    rule = MeanGradient() if gradient is None else gradient
    at = begin(training, [w.detach().clone() for w in before])
    yield at
    for index, batch in enumerate(batches):
        step = Step(
            network,
            at.weights,
            inputs[batch.rows],
            targets[batch.rows],
            generator=noise,
            index=index,
            place=batch.place,
            smoothing=training.label_smoothing,
            objective=training.loss,
        )
        at = advance(training, at, local_gradient(rule, step, training.clip))
        yield at


def train(
    network: Network,
    before: Sequence[Tensor],
    inputs: Tensor,
    targets: Tensor,
    batches: Iterable[LocalBatch],
    training: Training,
    gradient: GradientFn | None = None,
    noise: torch.Generator | None = None,
) -> list[Tensor]:
    """Return the weights after local training on whitened inputs [McMahan et al., 2017, Algorithm 1]."""
    for at in path(network, before, inputs, targets, batches, training, gradient, noise):
        last = at
    return [w.detach() for w in last.weights]
