"""The message as a single gradient at a point between the weights before and after."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedglass.attack.forward.target import full_batch, leaves, mean_gradient, network_of
from fedglass.attack.parts import BoundForward
from fedglass.core.types import Candidate, Observation, Unknown
from fedglass.fl.local import MeanGradient


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
        rule = MeanGradient()

        def predict(candidate: Candidate, unknowns: Sequence[Tensor]) -> Sequence[Tensor]:
            weights = [torch.addcmul(w, unknowns[0], u) for w, u in zip(before, update, strict=True)]
            return rule.gradient(full_batch(network, weights, candidate))

        zero, one = (before[0].new_tensor(value) for value in (0.0, 1.0))
        alpha = Unknown(torch.full_like(zero, self.start), zero, one, self.rate, self.every)
        return BoundForward(mean_gradient(observation, network), predict, network.names, (alpha,))
