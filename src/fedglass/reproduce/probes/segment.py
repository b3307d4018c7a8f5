"""The two theorems of SME next to what a training does: how well a gradient on the segment fits the update.

[Zhu, Yao, Blaschko, 2023, Theorems 4.3 and 4.5]. Both suppose a strongly convex loss, which networks do not have, and
constants that nobody knows. Here L, β and the largest gradient noise are the largest values along the path. The true
constants are at least as large, so that the true bounds are no smaller than those computed here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from fedglass.attack.parts import Progress
from fedglass.audit.cases import ProbeResult
from fedglass.audit.cost import Workload
from fedglass.audit.target import Target
from fedglass.core.errors import UsageError
from fedglass.core.rng import stream
from fedglass.core.types import Training
from fedglass.fl.local import LocalBatch, schedule
from fedglass.models.network import Network
from fedglass.reproduce.probes.geometry import cosine_on_segment, local_path, shares_in_subspace, true_gradient


@dataclass(frozen=True)
class PathConstants:
    """What both theorems are made of, measured along a local path."""

    rate: float
    """η."""
    steps: int
    """T."""
    least_share: float
    """The smallest share of a gradient in the plane, at least 1 - G₂² [Eq. 6]."""
    steepness: float
    """L, the largest norm of a gradient."""
    smoothness: float
    """β, the largest change of the gradient per length of a step."""
    drop: float
    """ℓ(w₀) - ℓ(w_T)."""

    @property
    def outside(self) -> float:
        """Return G₂."""
        return math.sqrt(max(0.0, 1 - self.least_share))

    @property
    def scaling(self) -> float:
        """Return C_GD = sqrt(T G(η, β)² L² / (ℓ(w₀) - ℓ(w_T))); infinite where the theorems do not apply."""
        remaining = 1 - self.rate * self.smoothness / 2
        if self.rate * self.smoothness >= 1 or self.drop <= 0:
            return math.inf
        return math.sqrt(self.steps * self.outside**2 * self.rate / remaining * self.steepness**2 / self.drop)

    def gradient_descent_bound(self) -> float:
        """Return the bound of Theorem 4.3 on L_sim, without its error of discretisation.

        >>> PathConstants(0.1, 4, 1.0, 2.0, 1.0, 0.5).gradient_descent_bound()
        0.0
        """
        return (self.outside + self.scaling) ** 2

    def stochastic_bound(self, noise: float, drop_without_noise: float) -> tuple[float, float]:
        """Return the bound of Theorem 4.5 on L_sim and the probability with which it holds, at least 0.

        Its second term, which needs the strong convexity and the global minimum, is left out: it is not negative.
        """
        growth = (1 + self.rate * self.smoothness) ** (self.steps - 1)
        if self.scaling >= 1 or drop_without_noise <= 0 or noise <= 0:
            return math.inf, 0.0
        c, ratio = 1 / (math.sqrt(self.rate) * growth), drop_without_noise / (self.steepness * noise)
        r = min(c * ratio**2 / (4 * self.steps), c * ratio / 4)
        drift = self.steepness * self.steps * noise * self.rate * growth / drop_without_noise
        factor = (1 + self.outside) / (1 - math.sqrt(self.rate)) / (1 - self.scaling)
        bound = 2 * self.rate + factor * (self.scaling + drift) + self.outside**2
        return bound, max(0.0, 1 - 3 * self.steps * math.exp(-r))


@dataclass(frozen=True)
class SegmentBounds:
    """The smallest L_sim on the segment, and the bounds of both theorems on it."""

    accelerated: ClassVar[bool] = False
    attack: ClassVar[None] = None

    points: int = 51

    def measure(self, target: Target, seed: int, progress: Progress) -> ProbeResult:
        observation, truth = target.observation, target.known_truth
        training = observation.knows.training
        if training is None:
            raise UsageError("The bounds of a local training need to know the training.")
        network = Network(observation.model, observation.buffers, training.batch_norm)
        inputs, labels = observation.knows.whitening.whiten(truth.images), truth.labels
        start = [observation.before[name] for name in network.names]
        batches = list(schedule(training, len(labels), stream(seed, "path")))
        weights = list(local_path(network, start, inputs, labels, batches, training))
        gradients = [true_gradient(network, at, inputs, labels) for at in weights]
        noise = max(
            _distance(true_gradient(network, at, inputs[b.rows], labels[b.rows]), gradient)
            for at, gradient, b in zip(weights[:-1], gradients[:-1], batches, strict=True)
        )
        plain = _whole_batches(network, start, inputs, labels, len(batches), training)
        losses = [_loss(network, at, inputs, labels) for at in (start, weights[-1], plain)]
        path = PathConstants(
            training.lr,
            len(batches),
            float(shares_in_subspace(gradients[:-1]).min()),
            max(_distance(g) for g in gradients),
            _smoothness(weights, gradients),
            losses[0] - losses[1],
        )
        alphas = torch.linspace(0, 1, self.points).tolist()
        best = float(cosine_on_segment(network, start, weights[-1], inputs, labels, alphas).max())
        progress(1, 1)
        stochastic, probability = path.stochastic_bound(noise, losses[0] - losses[2])
        measures = {
            "lsim_best": 1 - best,
            "bound_gd": path.gradient_descent_bound(),
            "bound_sgd": stochastic,
            "probability": probability,
            "outside": path.outside,
            "rate_smoothness": path.rate * path.smoothness,
            "scaling": path.scaling,
            "noise": noise,
        }
        finite = {name: value for name, value in measures.items() if math.isfinite(value)}
        return ProbeResult({"extra": {"measures": finite}})

    def seconds(self, load: Workload) -> float:
        return (4 * load.steps + self.points) * load.gradient(load.examples)


def _whole_batches(
    network: Network, start: Sequence[Tensor], inputs: Tensor, labels: Tensor, steps: int, training: Training
) -> list[Tensor]:
    """Return the weights after as many steps of gradient descent on all examples."""
    batches = [LocalBatch(i, slice(None)) for i in range(steps)]
    *_, last = local_path(network, start, inputs, labels, batches, training)
    return last


def _loss(network: Network, weights: Sequence[Tensor], inputs: Tensor, labels: Tensor) -> float:
    with torch.no_grad():
        return float(F.cross_entropy(network(weights, inputs), labels))


def _smoothness(weights: Sequence[Sequence[Tensor]], gradients: Sequence[Sequence[Tensor]]) -> float:
    """Return the largest ratio of the change of the gradient to the length of a step."""
    steps = range(len(weights) - 1)
    lengths = [(_distance(weights[i + 1], weights[i]), _distance(gradients[i + 1], gradients[i])) for i in steps]
    return max((change / length for length, change in lengths if length > 0), default=0.0)


def _distance(first: Sequence[Tensor], second: Sequence[Tensor] | None = None) -> float:
    """Return the norm of a list of tensors, or of the difference of two, as one vector."""
    other = [torch.zeros_like(t) for t in first] if second is None else second
    pairs = zip(first, other, strict=True)
    return math.sqrt(sum(float((a - b).detach().double().square().sum()) for a, b in pairs))
