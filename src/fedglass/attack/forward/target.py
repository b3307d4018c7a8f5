"""The observed message in the units of an operator."""

from __future__ import annotations

from torch import Tensor

from fedglass.core.types import BatchNorm, Observation
from fedglass.models.network import Network


def network_of(observation: Observation) -> Network:
    """The model as the client trained it, as far as the adversary knows."""
    training = observation.knows.training
    statistics = BatchNorm.FROZEN if training is None else training.batch_norm
    return Network(observation.model, observation.buffers, statistics)


def leaves(observation: Observation, network: Network) -> list[Tensor]:
    """The weights before training, in the network's order, ready to be differentiated."""
    return [observation.before[name].detach().clone().requires_grad_() for name in network.names]


def mean_gradient(observation: Observation, network: Network) -> tuple[Tensor, ...]:
    """-update / (lr T): the mean over the local steps of the gradients that were taken.

    Where the training is unknown the scale is too, and -update is returned: good enough for `Cosine`.
    """
    scale = -1.0 / local_distance(observation)
    return tuple(observation.update[name] * scale for name in network.names)


def local_distance(observation: Observation) -> float:
    """lr T, the factor between an update and the mean gradient behind it; 1 where it is not known."""
    knows = observation.knows
    if knows.training is None:
        return 1.0
    return knows.training.lr * knows.training.steps(max(1, knows.examples // knows.clients))


def head_gradient(observation: Observation) -> Tensor:
    """The gradient of the last linear layer's weights, up to a positive scale.  # (classes, features)"""
    weight, _ = network_of(observation).head
    return -observation.update[weight]
