"""The geometry of a local training: gradients in a plane, cosine along the segment, and sparsity of gradients.

The first two are of SME [Zhu, Yao, Blaschko, 2023, Sec. 5.1, Eq. 5 and Figure 4], the last of coarse-to-fine inversion
[K. Zhu et al., 2025, Figure 3].
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedglass.attack.parts import Progress
from fedglass.audit.cases import ProbeResult
from fedglass.audit.cost import Workload
from fedglass.audit.target import Target
from fedglass.core.errors import UsageError
from fedglass.core.rng import stream
from fedglass.core.types import Training
from fedglass.fl.local import LocalBatch, MeanGradient, Step, path, schedule
from fedglass.models.network import Network
from fedglass.reproduce.charts import Curve


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


def sparsity(gradient: Iterable[Tensor], tolerance: float = 0.0) -> float:
    """Return the share of entries outside the support {i : |g_i| > tolerance} of all layers [K. Zhu et al., Eq. 1].

    The paper defines the support by g_i != 0 and gives no tolerance for its figure, so that zero is the default.

    >>> sparsity([torch.tensor([0.0, 1.0]), torch.tensor([[0.0, -2.0]])])
    0.5
    """
    if not 0 <= tolerance < math.inf:
        raise UsageError(f"tolerance must be a number of at least 0, got {tolerance}.")
    zeros = entries = 0
    for layer in gradient:
        # A NaN is not a zero.
        zeros += int((layer.detach().abs() <= tolerance).sum())
        entries += layer.numel()
    if entries == 0:
        raise UsageError("A gradient without entries has no sparsity: give the tensors of at least one layer.")
    return zeros / entries


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


@dataclass(frozen=True)
class Geometry:
    """Trains the client step by step and measures along its way [Zhu, Yao, Blaschko, 2023, Sec. 5.1]."""

    accelerated: ClassVar[bool] = False
    attack: ClassVar[None] = None

    points: int = 51
    """Values of alpha, from the weights before to those after."""

    def measure(self, target: Target, seed: int, progress: Progress) -> ProbeResult:
        observation, truth = target.observation, target.known_truth
        training = observation.knows.training
        if training is None:
            raise UsageError("The geometry of a local training needs to know the training.")
        network = Network(observation.model, observation.buffers, training.batch_norm)
        inputs = observation.knows.whitening.whiten(truth.images)
        start = [observation.before[name] for name in network.names]
        batches = list(schedule(training, len(truth.labels), stream(seed, "path")))
        total = len(batches) + self.points
        gradients = []
        for step, at in enumerate(local_path(network, start, inputs, truth.labels, batches, training)):
            if step < len(batches):
                gradients.append(true_gradient(network, at, inputs, truth.labels))
            after = at
            progress(step, total)
        alphas = torch.linspace(0, 1, self.points).tolist()
        cosines = cosine_on_segment(network, start, after, inputs, truth.labels, alphas).tolist()
        shares = shares_in_subspace(gradients).tolist()
        progress(total, total)
        curves = (
            Curve("share in the 2-D subspace", "local step t", len(shares) - 1, shares),
            Curve("cosine", "α", 1, cosines),
        )
        measures = {"min_share": min(shares), "cosine_before": cosines[0], "cosine_best": max(cosines)}
        return ProbeResult({"extra": {"measures": measures, "curves": [asdict(curve) for curve in curves]}})

    def seconds(self, load: Workload) -> float:
        return (load.steps + self.points) * load.gradient(load.examples)
