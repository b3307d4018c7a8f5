"""The message as a single gradient at the weights before training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedglass.attack.forward.target import (
    full_gradient,
    gradient_sum,
    known_training,
    leaves,
    mean_gradient,
    network_of,
    step_length,
)
from fedglass.attack.parts import BoundForward
from fedglass.core.facts import Fact
from fedglass.core.types import Candidate, Observation


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
