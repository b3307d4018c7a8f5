"""The observed message in the units of an operator."""

from __future__ import annotations

import torch
from torch import Tensor

from fedglass.core.facts import Fact, refusal
from fedglass.core.types import BatchNorm, Candidate, Observation, Training
from fedglass.fl.local import Step
from fedglass.fl.trajectory import per_epoch
from fedglass.models.network import Network


def network_of(observation: Observation) -> Network:
    """The model as the client trained it, as far as the adversary knows."""
    training = observation.knows.training
    statistics = BatchNorm.FROZEN if training is None else training.batch_norm
    return Network(observation.model, observation.buffers, statistics)


def leaves(observation: Observation, network: Network) -> list[Tensor]:
    """The weights before training, in the network's order, ready to be differentiated."""
    return [observation.before[name].detach().clone().requires_grad_() for name in network.names]


def known_training(observation: Observation) -> Training:
    """The client's training, which a simulation can not do without."""
    training = observation.knows.training
    if training is None:
        raise refusal("Simulating the client", [Fact.TRAINING])
    return training


def full_batch(network: Network, weights: list[Tensor], candidate: Candidate) -> Step:
    """One step on all examples of the candidate's first epoch, to be differentiated twice."""
    labels = candidate.labels[0] if per_epoch(candidate.labels) else candidate.labels
    return Step(network, weights, candidate.images[0], labels, differentiable=True)


def mean_gradient(observation: Observation, network: Network) -> tuple[Tensor, ...]:
    """-update / (lr T): the mean over the local steps of the gradients that were taken.

    Where the training is unknown the scale is too, and -update is returned: good enough for `Cosine`.
    """
    scale = -1.0 / local_distance(observation)
    return tuple(observation.update[name] * scale for name in network.names)


def gradient_sum(observation: Observation, network: Network, lr: float) -> tuple[Tensor, ...]:
    """-update / lr: the sum over the local steps of the gradients that were taken."""
    return tuple(observation.update[name] / -lr for name in network.names)


def local_distance(observation: Observation) -> float:
    """lr T, the factor between an update and the mean gradient behind it; 1 where it is not known."""
    lr, steps = learning_rate(observation), local_steps(observation)
    return 1.0 if lr is None or steps is None else lr * steps


def learning_rate(observation: Observation) -> float | None:
    """The clients' learning rate, where it is known."""
    training = observation.knows.training
    return observation.knows.lr if training is None else training.lr


def local_steps(observation: Observation) -> int | None:
    """T, the number of each client's local steps, where it is known."""
    knows = observation.knows
    return knows.steps if knows.training is None else knows.training.steps(max(1, knows.examples // knows.clients))


def head_of(observation: Observation, network: Network) -> tuple[str, str | None]:
    """The names of weight and bias of the last dense layer that is executed, which need not be the last registered."""
    weights = [observation.before[name] for name in network.names]
    with torch.no_grad():
        # Two examples: a normalisation layer with batch statistics refuses one.
        network.features(weights, weights[0].new_zeros(2, *observation.knows.shape))
    return network.head


def head_weight(observation: Observation) -> str:
    """The name of the last dense layer's weights."""
    return head_of(observation, network_of(observation))[0]


def head_gradient(observation: Observation) -> Tensor:
    """The gradient of the last linear layer's weights, up to a positive scale.  # (classes, features)"""
    return -observation.update[head_weight(observation)]
