"""The message as a gradient at points between the weights before and after."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedglass.attack.forward.target import full_gradient, leaves, local_steps, mean_gradient, network_of
from fedglass.attack.parts import BoundForward
from fedglass.core.errors import UsageError
from fedglass.core.types import Candidate, Observation, Unknown


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
