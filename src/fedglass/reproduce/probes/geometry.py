"""The geometry of a local training: gradients in a plane, cosine along the segment, and sparsity of gradients.

The first two are of SME [Zhu, Yao, Blaschko, 2023, Sec. 5.1, Eq. 5 and Figure 4], the last of coarse-to-fine inversion
[K. Zhu et al., 2025, Figure 3].

`segment` compares two theorems of SME with what a training does: how well a gradient on the segment fits the update.

[Zhu, Yao, Blaschko, 2023, Theorems 4.3 and 4.5]. Both suppose a strongly convex loss, which networks do not have, and
constants that nobody knows. Here L, β and the largest gradient noise are the largest values along the path. The true
constants are at least as large, so that the true bounds are no smaller than those computed here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn import functional as F

from fedglass.attack.parts import Progress
from fedglass.audit.cost import Workload
from fedglass.audit.target import ProbeResult, Target
from fedglass.core.errors import UsageError
from fedglass.core.rng import stream
from fedglass.core.types import Training
from fedglass.fl.local import LocalBatch, MeanGradient, Step, path, schedule
from fedglass.models.network import Network
from fedglass.reproduce.probes.probe import PublishedProbe


def local_path(
    network: Network,
    before: Sequence[Tensor],
    inputs: Tensor,
    labels: Tensor,
    batches: Iterable[LocalBatch],
    training: Training,
) -> Iterator[list[Tensor]]:
    """Yield the weights w_0 .. w_T of a local training on whitened inputs."""
    for at in path(network, before, inputs, labels, batches, training):
        yield [w.detach() for w in at.weights]


def true_gradient(network: Network, weights: Sequence[Tensor], inputs: Tensor, labels: Tensor) -> list[Tensor]:
    """Return the gradient of the mean loss over all of the client's examples."""
    leaves = [w.detach().requires_grad_() for w in weights]
    return list(MeanGradient().gradient(Step(network, leaves, inputs, labels)))


def shares_in_subspace(gradients: Sequence[Sequence[Tensor]], rank: int = 2) -> Tensor:
    """Return |P g_t| / |g_t| with P the projection onto the best `rank`-dimensional subspace.  # -> (T,)

    The subspace is that of the largest singular values, uncentred. It is read off the T x T matrix of inner
    products: with A = U S V', the part of row t within the subspace has the norm of (U S)_t cut to `rank` columns.

    >>> flat = [[torch.tensor([1.0, 0.0, 0.0])], [torch.tensor([0.0, 2.0, 0.0])], [torch.tensor([3.0, 1.0, 0.0])]]
    >>> shares_in_subspace(flat)
    tensor([1.0000, 1.0000, 1.0000], dtype=torch.float64)
    """
    if not gradients or rank < 1:
        raise UsageError(f"A subspace needs at least one gradient and rank >= 1, got {len(gradients)} and rank {rank}.")
    gram = _inner_products(gradients)
    values, vectors = torch.linalg.eigh(gram)  # ascending
    inside = (vectors[:, -rank:].square() * values[-rank:].clamp_min(0)).sum(1)
    squared_norms = gram.diagonal()
    if not bool((squared_norms > 0).all()):
        raise UsageError("A gradient of zero has no direction: the training stands still, leave its step out.")
    shares: Tensor = (inside / squared_norms).clamp(0, 1).sqrt()
    return shares


def _inner_products(gradients: Sequence[Sequence[Tensor]]) -> Tensor:
    """Return inner products in double precision, summed layer by layer.  # (T, T)"""
    layers = zip(*gradients, strict=True)
    total = torch.zeros(len(gradients), len(gradients), dtype=torch.float64)
    for layer in layers:
        rows = torch.stack([g.detach().reshape(-1) for g in layer]).cpu().double()
        total += rows @ rows.T
    return total


def cosine_on_segment(
    network: Network,
    before: Sequence[Tensor],
    after: Sequence[Tensor],
    inputs: Tensor,
    labels: Tensor,
    alphas: Sequence[float],
) -> Tensor:
    """Return the cosine of w_0 - w_T and the gradient at w_0 + alpha (w_T - w_0), for each alpha.  # -> (len(alphas),)

    alpha is counted from the weights before, as in the release of SME; its Algorithm 1 counts from the other end.
    """
    moved = [b - a for b, a in zip(before, after, strict=True)]
    cosines = []
    for alpha in alphas:
        weights = [b - alpha * m for b, m in zip(before, moved, strict=True)]
        cosines.append(cosine(moved, true_gradient(network, weights, inputs, labels)))
    return torch.tensor(cosines, dtype=torch.float64)


def cosine(first: Sequence[Tensor], second: Sequence[Tensor]) -> float:
    """Return the cosine of two lists of tensors, each as one vector; 0 if one of them is zero.

    >>> cosine([torch.tensor([1.0]), torch.tensor([1.0])], [torch.tensor([1.0]), torch.tensor([0.0])])
    0.7071067811865475
    """
    inner, a, b = (_dot(x, y) for x, y in ((first, second), (first, first), (second, second)))
    return inner / (a * b) ** 0.5 if a > 0 and b > 0 else 0.0


def _dot(first: Sequence[Tensor], second: Sequence[Tensor]) -> float:
    pairs = zip(first, second, strict=True)
    return sum(float(torch.dot(x.detach().double().flatten(), y.detach().double().flatten())) for x, y in pairs)


def sparsity(gradient: Iterable[Tensor]) -> float:
    """Return the share of entries outside the support {i : g_i != 0} of all layers [K. Zhu et al., Eq. 1].

    >>> sparsity([torch.tensor([0.0, 1.0]), torch.tensor([[0.0, -2.0]])])
    0.5
    """
    layers = list(gradient)
    entries = sum(layer.numel() for layer in layers)
    if entries == 0:
        raise UsageError("A gradient without entries has no sparsity: give the tensors of at least one layer.")
    return sum(int((layer == 0).sum()) for layer in layers) / entries


def pearson(xs: Sequence[float], ys: Sequence[float]) -> float | None:
    """Return Pearson's correlation coefficient, in [-1, 1]; None if one of the two does not vary.

    >>> round(pearson([1.0, 2.0, 3.0], [6.0, 4.0, 2.0]), 6)
    -1.0
    """
    if len(xs) != len(ys) or len(xs) < 2:
        raise UsageError(f"A correlation needs two lists of the same length, at least 2, got {len(xs)} and {len(ys)}.")
    x, y = (torch.tensor(values, dtype=torch.float64) for values in (xs, ys))
    if not bool((torch.isfinite(x) & torch.isfinite(y)).all()):
        raise UsageError("A correlation needs finite numbers, got NaN or infinity: leave those pairs out.")
    # By the largest value, so that squares neither vanish nor overflow.
    dx, dy = (_scaled(v - v.mean()) for v in (x, y))
    norms = float(dx.norm() * dy.norm())
    if norms == 0 or len(set(xs)) == 1 or len(set(ys)) == 1:
        return None
    return max(-1.0, min(1.0, float(dx @ dy) / norms))


def _scaled(values: Tensor) -> Tensor:
    largest = values.abs().max()
    return values / largest if float(largest) > 0 else values


def _local_training(
    target: Target, seed: int
) -> tuple[Network, list[Tensor], Tensor, Tensor, list[LocalBatch], Training]:
    """Return the network, its weights before, the client's inputs and labels, and its batches in a drawn order."""
    observation, truth = target.observation, target.known_truth
    training = observation.knows.training
    if training is None:
        raise UsageError("The geometry of a local training needs to know the training.")
    network = Network(observation.model, observation.buffers, training.batch_norm)
    start = [observation.before[name] for name in network.names]
    batches = list(schedule(training, len(truth.labels), stream(seed, "path")))
    return network, start, observation.knows.whitening.whiten(truth.images), truth.labels, batches, training


@dataclass(frozen=True)
class Geometry(PublishedProbe):
    """Trains the client step by step and measures along its way [Zhu, Yao, Blaschko, 2023, Sec. 5.1]."""

    points: int = 51
    """Values of alpha, from the weights before to those after."""

    def measure(self, target: Target, seed: int, progress: Progress) -> ProbeResult:
        network, start, inputs, labels, batches, training = _local_training(target, seed)
        total = len(batches) + self.points
        gradients = []
        for step, at in enumerate(local_path(network, start, inputs, labels, batches, training)):
            if step < len(batches):
                gradients.append(true_gradient(network, at, inputs, labels))
            after = at
            progress(step, total)
        alphas = torch.linspace(0, 1, self.points).tolist()
        cosines = cosine_on_segment(network, start, after, inputs, labels, alphas).tolist()
        shares = shares_in_subspace(gradients).tolist()
        progress(total, total)
        curves = [
            {"title": "share in the 2-D subspace", "axis": "local step t", "last": len(shares) - 1, "values": shares},
            {"title": "cosine", "axis": "α", "last": 1, "values": cosines},
        ]
        measures = {"min_share": min(shares), "cosine_before": cosines[0], "cosine_best": max(cosines)}
        return ProbeResult({"extra": {"measures": measures, "curves": curves}})

    def seconds(self, load: Workload) -> float:
        return (load.steps + self.points) * load.gradient(load.examples)


@dataclass(frozen=True)
class PathConstants:
    """The terms of both theorems, measured along a local path."""

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
class SegmentBounds(PublishedProbe):
    """The smallest L_sim on the segment, and the bounds of both theorems on it."""

    points: int = 51

    def measure(self, target: Target, seed: int, progress: Progress) -> ProbeResult:
        network, start, inputs, labels, batches, training = _local_training(target, seed)
        weights = list(local_path(network, start, inputs, labels, batches, training))
        gradients = [true_gradient(network, at, inputs, labels) for at in weights]
        noise = max(
            _distance(true_gradient(network, at, inputs[b.rows], labels[b.rows]), gradient)
            for at, gradient, b in zip(weights[:-1], gradients[:-1], batches, strict=True)
        )
        whole = [LocalBatch(i, slice(None)) for i in range(len(batches))]
        *_, without_noise = local_path(network, start, inputs, labels, whole, training)
        with torch.no_grad():
            ends = (start, weights[-1], without_noise)
            losses = [float(F.cross_entropy(network(at, inputs), labels)) for at in ends]
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


def _smoothness(weights: Sequence[Sequence[Tensor]], gradients: Sequence[Sequence[Tensor]]) -> float:
    """Return the largest ratio of the change of the gradient to the length of a step."""
    lengths, changes = ([_distance(b, a) for a, b in pairwise(of)] for of in (weights, gradients))
    ratios = [change / length for length, change in zip(lengths, changes, strict=True) if length > 0]
    return max(ratios, default=0.0)


def _distance(first: Sequence[Tensor], second: Sequence[Tensor] | None = None) -> float:
    """Return the norm of a list of tensors, or of the difference of two, as one vector."""
    other = [torch.zeros_like(t) for t in first] if second is None else second
    pairs = zip(first, other, strict=True)
    return math.sqrt(sum(float((a - b).detach().double().square().sum()) for a, b in pairs))
