"""The operator of model inversion: what the global model says of a candidate, not what a client would have sent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional as F

from fedglass.attack.parts import BoundForward
from fedglass.core.types import BatchNorm, Candidate, Observation, Training
from fedglass.fl.trajectory import per_epoch
from fedglass.models.network import Network


@dataclass(frozen=True)
class GlobalModel:
    """The cross entropy of each candidate with its label, under the model after the message [Wu et al., 2024].

    A peer has the global model of every round. The message is read through that model only: it tells which images the
    model takes for the class, not which images a client has. The target is a loss of zero, which true images do not
    reach in general. Running statistics stay as they are.
    """

    def cost(self, training: Training, examples: int) -> tuple[float, int]:
        """Return the cost of a prediction and its gradient: one plain gradient of all examples."""
        return 1.0, examples

    def bind(self, observation: Observation) -> BoundForward:
        network = Network(observation.model, observation.buffers, BatchNorm.FROZEN)
        weights = [(observation.before[name] + observation.update[name]).detach() for name in network.names]

        def predict(candidate: Candidate, unknowns: Sequence[Tensor]) -> Sequence[Tensor]:
            labels = candidate.labels[0] if per_epoch(candidate.labels) else candidate.labels
            return (F.cross_entropy(network(weights, candidate.images[0]), labels, reduction="none"),)

        return BoundForward((weights[0].new_zeros(observation.knows.examples),), predict, ("loss",))
