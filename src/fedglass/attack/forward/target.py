"""Shared by the operators: the observed message in their units, the network, and the base of simulations."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fedglass.core.facts import Fact, refusal
from fedglass.core.losses import Loss
from fedglass.core.tensors import Update
from fedglass.core.types import BatchNorm, Candidate, Observation, Training
from fedglass.fl.local import MeanGradient, Step, local_gradient
from fedglass.fl.trajectory import per_epoch
from fedglass.models.network import Network


def network_of(observation: Observation) -> Network:
    """Return the model as the client trained it, as far as the adversary knows."""
    training = observation.knows.training
    statistics = BatchNorm.FROZEN if training is None else training.batch_norm
    return Network(observation.model, observation.buffers, statistics)


def like(observation: Observation) -> Tensor:
    """Return a tensor of the message, for the device and type of the attack's tensors."""
    return next(iter(observation.update.values()))


def leaves(observation: Observation, network: Network) -> list[Tensor]:
    """Return the weights before training, in the network's order, ready to be differentiated."""
    return [observation.before[name].detach().clone().requires_grad_() for name in network.names]


def known_training(observation: Observation) -> Training:
    """Return the client's training, which a simulation cannot do without."""
    training = observation.knows.training
    if training is None:
        raise refusal("Simulating the client", [Fact.TRAINING])
    return training


def full_gradient(
    network: Network,
    weights: Sequence[Tensor],
    candidate: Candidate,
    training: Training | None,
    loss: Loss | None = None,
) -> Sequence[Tensor]:
    """Return the gradient of one step on all examples of the candidate's first epoch, to be differentiated again.

    It is as the client would compute it, clipped where its training clips. `loss` is its loss if its training is not
    known.
    """
    labels = candidate.labels[0] if per_epoch(candidate.labels) else candidate.labels
    loss = loss if training is None else training.loss
    smoothing, clip = (0.0, None) if training is None else (training.label_smoothing, training.clip)
    step = Step(network, weights, candidate.images[0], labels, differentiable=True, smoothing=smoothing, objective=loss)
    return local_gradient(MeanGradient(), step, clip)


def mean_gradient(observation: Observation, network: Network) -> tuple[Tensor, ...]:
    """Return -update / travel, the mean of the gradients of the local steps; travel is lr T for plain SGD.

    Where it is unknown, so is the scale, and -update is returned: enough for `Cosine`. Under Adam or with weight decay
    no such factor exists.
    """
    travel = observation.knows.travel
    scale = -1.0 / (1.0 if travel is None else travel)
    return tuple(observation.update[name] * scale for name in network.names)


def limits_before_filter(observation: Observation) -> tuple[Update, Update] | None:
    """Return the lowest and highest entries that the update may have had before its filter; None where none is known.

    They are compared with predictions, whose size must be known.
    """
    part, update = observation.knows.filter, observation.update
    return None if part is None or observation.knows.travel is None else part.limits(update, update)


def gradient_sum(observation: Observation, network: Network, lr: float) -> tuple[Tensor, ...]:
    """Return -update / lr, the sum over the local steps of the directions in which the optimiser moved."""
    return tuple(observation.update[name] / -lr for name in network.names)


def step_length(observation: Observation) -> float | None:
    """Return the mean length of one local step along a constant gradient of size 1: lr for plain SGD."""
    lr, steps, training = learning_rate(observation), observation.knows.local_steps, observation.knows.training
    if lr is None or steps is None or training is None:
        return lr
    # Of steps of length 1 first, so that the result for plain SGD is bit-identical to lr.
    unit = training.optimiser.travel(1.0, steps)
    return None if unit is None else lr * (unit / steps)


def is_gradient(observation: Observation) -> bool:
    """Check that a message of one step is a multiple of a gradient, as far as is known: not under Adam or decay."""
    training = observation.knows.training
    return training is None or training.optimiser.travel(1.0, 1) is not None


def learning_rate(observation: Observation) -> float | None:
    """Return the clients' learning rate, where it is known."""
    training = observation.knows.training
    return observation.knows.lr if training is None else training.lr


def head_of(observation: Observation) -> tuple[str, str | None]:
    """Return the names of weight and bias of the last dense layer that runs, which may not be the last registered."""
    network = network_of(observation)
    weights = [observation.before[name] for name in network.names]
    with torch.no_grad():
        # Two examples: a normalisation layer with batch statistics refuses one.
        network.features(weights, weights[0].new_zeros(2, *observation.knows.shape))
    return network.head


def head_gradient(observation: Observation) -> Tensor:
    """Return the gradient of the last linear layer's weights, up to a positive scale.  # (classes, features)"""
    return -observation.update[head_of(observation)[0]]


WALKS = 4.0
"""Cost of simulating a training and walking back, in plain trainings; measured on networks of Dimitrov et al., 2022."""


class Simulation:
    """Base of operators that simulate the local steps, each on all examples of a client unless they say otherwise."""

    def reads(self, observation: Observation) -> frozenset[Fact]:
        """Return the size as known: a simulated message has the size of the true one, for every optimiser."""
        return frozenset({Fact.SIZE})

    def cost(self, training: Training, examples: int) -> tuple[float, int]:
        """Return the cost of a prediction and its gradient: the number of plain gradients, and the examples of each."""
        return WALKS * training.local_steps(examples), examples
