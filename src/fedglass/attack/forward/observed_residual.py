"""The message of a single example as one gradient, with the network's error read off the message itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedglass.attack.forward.one_gradient import OneGradient
from fedglass.attack.forward.target import (
    full_gradient,
    head_of,
    is_gradient,
    leaves,
    local_steps,
    mean_gradient,
    network_of,
)
from fedglass.attack.parts import BoundForward
from fedglass.core.facts import Fact
from fedglass.core.types import Candidate, Observation

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
