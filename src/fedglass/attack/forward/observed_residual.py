"""The message of a single example as one gradient, with the network's error read off the message itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedglass.attack.forward.one_gradient import OneGradient
from fedglass.attack.forward.target import leaves, mean_gradient, network_of
from fedglass.attack.parts import BoundForward
from fedglass.core.types import Candidate, Observation
from fedglass.models.network import Network


@dataclass(frozen=True)
class ObservedResidual:
    """J(x)^T r with the residual r = softmax(logits) - onehot(label) fixed at its observed value.

    For one example the gradient of the last layer is r h^T (and r, for the bias), so that r need not be guessed
    along with the image. `OneGradient` computes r from the candidate: wherever the network's answer depends on
    the image, the candidate's r differs from the client's until the very end, which puts local minima in the
    way. Both have zero residual at the truth. Measured on Inverting Gradients with DLG's LeNet, networks that
    answer with several classes go from 12 to above 20 dB.

    A message of several examples or steps mixes their residuals: it is treated as by `OneGradient`.
    """

    def bind(self, observation: Observation) -> BoundForward:
        knows = observation.knows
        single_step = knows.training is None or knows.training.steps(knows.examples) == 1
        if knows.examples != 1 or knows.clients != 1 or not single_step:
            return OneGradient().bind(observation)
        network = network_of(observation)
        weights = leaves(observation, network)
        target = mean_gradient(observation, network)
        residual = observed_residual(network, target)

        def predict(candidate: Candidate, unknowns: Sequence[Tensor]) -> Sequence[Tensor]:
            error = (network(weights, candidate.images[0]) * residual).sum()
            return torch.autograd.grad(error, weights, create_graph=True)

        return BoundForward(target, predict, network.names)


def observed_residual(network: Network, gradient: Sequence[Tensor]) -> Tensor:
    """r, the last layer's bias gradient; from the rank-one weight gradient r h^T where there is no bias.

    Without a bias the scale is not known, which `Cosine` does not mind. The sign is: softmax minus one-hot is
    negative in one entry only.  # (classes,)
    """
    weight, bias = network.head
    named = dict(zip(network.names, gradient, strict=True))
    if bias is not None:
        return named[bias]
    left: Tensor = torch.linalg.svd(named[weight], full_matrices=False).U
    residual = left[:, 0]
    return residual if int((residual < 0).sum()) <= int((residual > 0).sum()) else -residual
