"""The message as a single gradient at the weights before training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedglass.attack.forward.target import (
    full_gradient,
    gradient_sum,
    head_of,
    is_gradient,
    known_training,
    leaves,
    local_steps,
    mean_gradient,
    network_of,
    step_length,
)
from fedglass.attack.parts import BoundForward
from fedglass.core.errors import UsageError
from fedglass.core.facts import Fact
from fedglass.core.types import Candidate, Observation, Unknown


@dataclass(frozen=True)
class OneGradient:
    """The gradient of the mean loss over all examples at the weights before [Zhu et al., 2019, Eq. 3].

    Exact for FedSGD. A FedAvg update is treated as one large step: it is divided by lr T where these are known, or
    by what stands for it with momentum, and compared in direction otherwise. So it is under Adam and with weight
    decay, of which the message is not a multiple of a gradient.
    """

    def bind(self, observation: Observation) -> BoundForward:
        network = network_of(observation)
        weights, training = leaves(observation, network), observation.knows.training

        def predict(candidate: Candidate, unknowns: Sequence[Tensor]) -> Sequence[Tensor]:
            return full_gradient(network, weights, candidate, training)

        return BoundForward(mean_gradient(observation, network), predict, network.names)


@dataclass(frozen=True)
class RepeatedGradient:
    """T times that gradient beside the sum of the gradients taken [Dimitrov et al., 2022, "FedSGD"].

    The same direction as `OneGradient`, in the units in which the release of that paper weighs its priors. Under Adam
    and with weight decay, where the update does not tell the sum of the gradients, it stands beside -update / lr.
    """

    needs: ClassVar[frozenset[Fact]] = frozenset({Fact.TRAINING, Fact.EQUAL_CLIENTS})

    def bind(self, observation: Observation) -> BoundForward:
        training = known_training(observation)
        network = network_of(observation)
        weights = leaves(observation, network)
        each = max(1, observation.knows.examples // observation.knows.clients)
        steps = training.local_steps(each)
        batches = min(len(training.batches(each)), steps)

        def predict(candidate: Candidate, unknowns: Sequence[Tensor]) -> Sequence[Tensor]:
            return [steps * g for g in full_gradient(network, weights, candidate, training)]

        target = gradient_sum(observation, network, step_length(observation) or training.lr)
        return BoundForward(target, predict, network.names, batches=batches)


# The message of a single example as one gradient, with the network's error read off the message itself.


MISSING = 0.2
"""The share of the largest entry that pruning or noise may have taken from a sum of zero."""


@dataclass(frozen=True)
class ObservedResidual:
    """J(x)^T r with the residual r = softmax(logits) - onehot(label) fixed at its observed value.

    For one example the gradient of the last layer is r h^T (and r, for the bias), so that r need not be guessed
    along with the image. `OneGradient` computes r from the candidate: wherever the network's answer depends on
    the image, the candidate's r differs from the client's until the very end, which puts local minima in the
    way. Both have zero residual at the truth. Measured on Inverting Gradients with DLG's LeNet, networks that
    answer with several classes go from 12 to above 20 dB.

    A message of several examples or steps mixes their residuals: it is treated as by `OneGradient`. So are labels
    that are sought along with the images, which a fixed residual would leave where they are. Without a bias in the
    last layer the message tells r up to its size only, which is enough for a direction; with `sized`, for
    distances that compare sizes, such a network is treated as by `OneGradient` too. So is a message from which
    a defence has cut out too much of r, and one that Adam or weight decay have made something else than a gradient.
    """

    sized: bool = False

    def reads(self, observation: Observation) -> frozenset[Fact]:
        """The size of a single example's gradient: with r it is known how long J(x)^T r is."""
        alone = is_alone(observation) and head_of(observation, network_of(observation))[1] is not None
        return frozenset({Fact.SIZE}) if alone else frozenset()

    def bind(self, observation: Observation) -> BoundForward:
        if not is_alone(observation):
            return OneGradient().bind(observation)
        network = network_of(observation)
        weights = leaves(observation, network)
        target = mean_gradient(observation, network)
        weight, bias = head_of(observation, network)
        if bias is None and self.sized:
            return OneGradient().bind(observation)
        named = dict(zip(network.names, target, strict=True))
        residual = named[bias] if bias is not None else left_factor(named[weight])
        if not is_residual(residual):
            return OneGradient().bind(observation)

        def predict(candidate: Candidate, unknowns: Sequence[Tensor]) -> Sequence[Tensor]:
            if candidate.labels.is_floating_point():
                return full_gradient(network, weights, candidate, observation.knows.training)
            error = (network(weights, candidate.images[0]) * residual).sum()
            return torch.autograd.grad(error, weights, create_graph=True, materialize_grads=True)

        return BoundForward(target, predict, network.names)


def is_alone(observation: Observation) -> bool:
    """Whether the message is one gradient of one example, as far as is known."""
    knows = observation.knows
    return knows.examples == 1 and local_steps(observation) in (None, 1) and is_gradient(observation)


def is_residual(found: Tensor) -> bool:
    """Whether it can be softmax minus one-hot, up to its size: not all zero, and its entries add up to nearly zero.

    >>> is_residual(torch.tensor([0.3, -0.9, 0.6])), is_residual(torch.zeros(3)), is_residual(torch.tensor([0.0, -0.9]))
    (True, False, False)
    """
    largest = found.abs().max()
    return bool(largest > 0) and bool(found.sum().abs() <= MISSING * largest)


def left_factor(gradient: Tensor) -> Tensor:
    """r out of a rank-one gradient r h^T, up to its scale, which `Cosine` does not mind.  # (classes, n) -> (classes,)

    Its sign is known: softmax minus one-hot adds up to zero and is negative in one entry only, which is thus the
    largest. Two classes are equally large; there the activations h are taken to be positive in the mean.
    """
    left: Tensor = torch.linalg.svd(gradient, full_matrices=False).U
    residual = left[:, 0]
    wrong = residual[residual.abs().argmax()] > 0 if len(residual) > 2 else residual @ gradient.sum(1) < 0
    return torch.where(wrong, -residual, residual)


# The message as a gradient at points between the weights before and after.


@dataclass(frozen=True)
class OnSegment:
    """The full-batch gradient at w0 + alpha (wT - w0), alpha an unknown in [0, 1] [Zhu et al., 2023, Eq. 5].

    `rate` is alpha's rate relative to the solver's. The paper's Algorithm 1 counts alpha from the other end.
    alpha's gradient needs second derivatives in the weights, which cost as much again as those in the images,
    and alpha moves slowly: with `every=10` it is computed at every tenth iteration only.
    """

    start: float = 0.5
    rate: float = 0.001
    every: int = 1

    def bind(self, observation: Observation) -> BoundForward:
        network = network_of(observation)
        before = leaves(observation, network)
        update = [observation.update[name] for name in network.names]
        training = observation.knows.training

        def predict(candidate: Candidate, unknowns: Sequence[Tensor]) -> Sequence[Tensor]:
            weights = [torch.addcmul(w, unknowns[0], u) for w, u in zip(before, update, strict=True)]
            return full_gradient(network, weights, candidate, training)

        zero, one = (before[0].new_tensor(value) for value in (0.0, 1.0))
        alpha = Unknown(torch.full_like(zero, self.start), zero, one, self.rate, self.every, name="alpha")
        return BoundForward(mean_gradient(observation, network), predict, network.names, (alpha,))


@dataclass(frozen=True)
class AlongSegment:
    """The mean of the full-batch gradients at `points` weights, evenly spread over the local steps, on w0..wT.

    The message is a sum of gradients at weights all along the way, which one gradient at one point can not be. At the
    true images, 1 - cos between message and prediction with 1, 2, 3 and 4 points is 0.033, 0.022, 0.018 and 0.017 on
    the CIFAR CNN with ten images, 0.047, 0.033, 0.029 and 0.029 with fifty (each the mean of two messages). Each point
    costs as much again. Exact for one local step, which starts at w0.
    """

    points: int = 2

    def __post_init__(self) -> None:
        if self.points < 1:
            raise UsageError(f"AlongSegment.points must be at least 1, got {self.points}.")

    def bind(self, observation: Observation) -> BoundForward:
        network = network_of(observation)
        ends = [(observation.before[name], observation.update[name]) for name in network.names]
        places = [
            [torch.add(w, u, alpha=alpha).detach().requires_grad_() for w, u in ends]
            for alpha in self.places(local_steps(observation))
        ]
        training = observation.knows.training

        def predict(candidate: Candidate, unknowns: Sequence[Tensor]) -> Sequence[Tensor]:
            gradients = [full_gradient(network, weights, candidate, training) for weights in places]
            return [torch.stack(parts).mean(0) for parts in zip(*gradients, strict=True)]

        return BoundForward(mean_gradient(observation, network), predict, network.names)

    def places(self, steps: int | None) -> list[float]:
        """The shares of the way. A step's gradient is taken where the step starts, hence the shift by half a step.

        >>> AlongSegment(2).places(1), AlongSegment(2).places(10), AlongSegment(2).places(None)
        ([0.0], [0.2, 0.7], [0.25, 0.75])
        """
        n = self.points if steps is None else min(self.points, steps)
        shift = 0.0 if steps is None else 0.5 / steps
        return [(i + 0.5) / n - shift for i in range(n)]
