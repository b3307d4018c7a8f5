"""The message as a single gradient at the weights before training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from fedglass.attack.forward.target import leaves, mean_gradient, network_of
from fedglass.attack.parts import BoundForward
from fedglass.core.types import Candidate, Observation
from fedglass.fl.local import MeanGradient, Step


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
            step = Step(network, weights, candidate.images[0], candidate.labels, differentiable=True)
            return rule.gradient(step)

        return BoundForward(mean_gradient(observation, network), predict, network.names)
