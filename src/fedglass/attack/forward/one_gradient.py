"""The message as a single gradient at the weights before training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedglass.attack.forward.target import (
    full_batch,
    gradient_sum,
    known_training,
    leaves,
    mean_gradient,
    network_of,
)
from fedglass.attack.parts import BoundForward
from fedglass.core.facts import Fact
from fedglass.core.types import Candidate, Observation
from fedglass.fl.local import MeanGradient


@dataclass(frozen=True)
class OneGradient:
    """The gradient of the mean loss over all examples at the weights before [Zhu et al., 2019, Eq. 3].

    Exact for FedSGD. A FedAvg update is treated as one large step: it is divided by lr T where these are
    known, and compared in direction otherwise.
    """

    def bind(self, observation: Observation) -> BoundForward:
        network = network_of(observation)
        weights = leaves(observation, network)
        rule = MeanGradient()

        def predict(candidate: Candidate, unknowns: Sequence[Tensor]) -> Sequence[Tensor]:
            return rule.gradient(full_batch(network, weights, candidate))

        return BoundForward(mean_gradient(observation, network), predict, network.names)


@dataclass(frozen=True)
class RepeatedGradient:
    """T times that gradient beside the sum of the gradients taken [Dimitrov et al., 2022, "FedSGD"].

    The same direction as `OneGradient`, in the units in which the release of that paper weighs its priors.
    """

    needs: ClassVar[frozenset[Fact]] = frozenset({Fact.TRAINING, Fact.EQUAL_CLIENTS})

    def bind(self, observation: Observation) -> BoundForward:
        training = known_training(observation)
        network = network_of(observation)
        weights = leaves(observation, network)
        batches = len(training.batches(max(1, observation.knows.examples // observation.knows.clients)))
        steps, rule = batches * training.epochs, MeanGradient()

        def predict(candidate: Candidate, unknowns: Sequence[Tensor]) -> Sequence[Tensor]:
            return [steps * g for g in rule.gradient(full_batch(network, weights, candidate))]

        target = gradient_sum(observation, network, training.lr)
        return BoundForward(target, predict, network.names, batches=batches)
