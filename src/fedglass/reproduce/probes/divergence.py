"""Lemma 1 of the curious client, measured: the distance between a super-client's update and the clients' mean.

[Wilson et al., 2024, Appendix A] K clients take tau full-batch steps each and are averaged by their sizes; the
super-client takes tau full-batch steps on all N examples. With H_k and g_k the Hessian and gradient of client k's mean
loss at the common start,

    delta(tau) = W_fed - W_single = lr^2 tau (tau - 1) / 2 * (sum_k N_k/N H_k g_k - H g) + O(lr^3).

The paper's Lemma 1 is about its expectation over examples drawn independently:

    E[delta] = lr^2 tau (tau - 1) / 2 * (K - 1)/N * Cov(J, g).

A single draw scatters about that mean, and an adversary meets single draws. The mean of the norms is at least the norm
of the mean, and need not depend on K as that does.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedglass.attack.parts import Progress
from fedglass.audit.cost import Workload
from fedglass.audit.target import ProbeResult, Target
from fedglass.core.errors import UsageError
from fedglass.core.rng import stream
from fedglass.core.types import BatchNorm, Training
from fedglass.fl.local import LocalBatch, MeanGradient, Step
from fedglass.models.network import Network
from fedglass.reproduce.probes.geometry import local_path
from fedglass.reproduce.probes.probe import PublishedProbe

ClientExamples = tuple[Tensor, Tensor]
"""Whitened inputs and labels of one client."""


def divergences(
    network: Network, before: Sequence[Tensor], clients: Sequence[ClientExamples], lr: float, steps: int
) -> Tensor:
    """Return delta(tau) for tau = 0, 1 .. steps, all parameters as one vector.  # -> (steps + 1, parameters)"""
    if not clients or steps < 1:
        raise UsageError(f"A divergence needs clients and steps >= 1, got {len(clients)} clients and {steps} steps.")
    counts = [len(labels) for _, labels in clients]
    together = (torch.cat([inputs for inputs, _ in clients]), torch.cat([labels for _, labels in clients]))
    delta = -_full_batch(network, before, together, lr, steps)
    for client, count in zip(clients, counts, strict=True):
        delta += _full_batch(network, before, client, lr, steps) * (count / sum(counts))
    return delta


def covariance(network: Network, before: Sequence[Tensor], inputs: Tensor, labels: Tensor) -> Tensor:
    """Return Cov(J, g) over the given examples: the mean of H_i g_i less H g, as one vector.  # -> (parameters,)

    H g is half the gradient of |g|^2, so that this is half the gradient of the trace of the gradients' covariance.
    """
    products = torch.stack(
        [_half_gradient_of_square(network, before, x[None], y[None]) for x, y in zip(inputs, labels, strict=True)]
    )
    return products.mean(0) - _half_gradient_of_square(network, before, inputs, labels)


def lemma_factor(lr: float, steps: int, clients: int, examples: int) -> float:
    """Return the factor between E[delta] and Cov(J, g) [Eq. 31]; the lemma's statement omits the half.

    >>> lemma_factor(lr=0.5, steps=3, clients=5, examples=8)
    0.375
    """
    return lr**2 * steps * (steps - 1) / 2 * (clients - 1) / examples


class DeltaDraws:
    """Draws of delta, which are added one by one and not stored: their common part, and their distance from zero.

    >>> same = DeltaDraws(torch.tensor([3.0, 4.0]))
    >>> for _ in range(3):
    ...     same.add(torch.tensor([3.0, 4.0]))
    >>> same.norm_of_mean(), same.mean_of_norms, same.along, same.along_error
    (5.0, 5.0, 1.0, 0.0)
    """

    def __init__(self, direction: Tensor) -> None:
        """`direction` is Cov(J, g)."""
        self._direction, self._total = direction, torch.zeros_like(direction)
        self._norms: list[float] = []
        self._positions: list[float] = []

    def add(self, delta: Tensor) -> None:
        self._total += delta
        self._norms.append(float(delta.norm()))
        self._positions.append(float(delta @ self._direction / self._direction.square().sum()))

    def norm_of_mean(self) -> float | None:
        """Return the norm of E[delta], without the bias of few draws; None if chance hides it.

        |mean|^2 is too large by the variance of the mean, so that pairs of different draws are averaged instead:
        (|sum|^2 - sum of squares) / (n (n - 1)).
        """
        count = len(self._norms)
        if count < 2:
            raise UsageError(f"A mean over draws needs at least 2 of them, got {count}.")
        square = (float(self._total.square().sum()) - sum(n * n for n in self._norms)) / (count * (count - 1))
        return math.sqrt(square) if square > 0 else None

    @property
    def mean_of_norms(self) -> float:
        """E[norm of delta]."""
        return statistics.fmean(self._norms)

    @property
    def along(self) -> float:
        """The mean of delta along Cov(J, g), in units of its norm: the factor of the lemma, if it holds."""
        return statistics.fmean(self._positions)

    @property
    def along_error(self) -> float:
        """Standard error of that mean."""
        return statistics.stdev(self._positions) / math.sqrt(len(self._positions))


def exponent(xs: Sequence[float], ys: Sequence[float]) -> float:
    """Return p of the power law y ~ x^p that fits best on a log scale.

    >>> round(exponent([1.0, 2.0, 4.0], [3.0, 12.0, 48.0]), 6)
    2.0
    """
    if len(xs) != len(ys) or len(set(xs)) < 2 or not all(0 < v < math.inf for v in (*xs, *ys)):
        raise UsageError("An exponent needs two lists of positive numbers of one length, with at least two places.")
    x, y = ([math.log(v) for v in values] for values in (xs, ys))
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    across = sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True))
    return across / sum((a - mean_x) ** 2 for a in x)


def _full_batch(network: Network, before: Sequence[Tensor], client: ClientExamples, lr: float, steps: int) -> Tensor:
    """Return the distance of the weights from the start after each step.  # (steps + 1, parameters)"""
    batches = [LocalBatch(epoch, slice(None)) for epoch in range(steps)]
    deltas = local_path(network, before, *client, batches, Training(lr, epochs=steps))
    start = _vector(before)
    return torch.stack([_vector(weights) - start for weights in deltas])


def _half_gradient_of_square(network: Network, before: Sequence[Tensor], inputs: Tensor, labels: Tensor) -> Tensor:
    weights = [w.detach().requires_grad_() for w in before]
    gradient = MeanGradient().gradient(Step(network, weights, inputs, labels, differentiable=True))
    square = torch.stack([g.square().sum() for g in gradient]).sum() / 2
    return _vector(torch.autograd.grad(square, weights, materialize_grads=True))


def _vector(tensors: Iterable[Tensor]) -> Tensor:
    return torch.cat([t.detach().flatten() for t in tensors])


DOUBLE = 2.0
"""Cost of double precision, in plain gradients."""


@dataclass(frozen=True)
class DivergenceSetting:
    """One round of a sweep: learning rate, local steps, clients, and the number of all their examples."""

    lr: float
    steps: int
    clients: int
    examples: int

    @property
    def factor(self) -> float:
        return lemma_factor(self.lr, self.steps, self.clients, self.examples)


@dataclass(frozen=True)
class Divergence(PublishedProbe):
    """Rounds in which one quantity changes; the exponent is fitted in it.

    Draws the clients' examples from the pool behind the message, with replacement, as the lemma demands. The same draws
    serve every point of the sweep. All is in double precision, since the differences are small.
    """

    axis: str
    values: tuple[float, ...]
    """Values of the quantity, one for each point."""
    points: tuple[DivergenceSetting, ...]
    draws: int = 24

    def measure(self, target: Target, seed: int, progress: Progress) -> ProbeResult:
        observation, truth = target.observation, target.known_truth
        network = Network(
            observation.model.double(), {k: v.double() for k, v in observation.buffers.items()}, BatchNorm.FROZEN
        )
        before = [observation.before[name].double() for name in network.names]
        inputs, labels = observation.knows.whitening.whiten(truth.images.double()), truth.labels
        direction = covariance(network, before, inputs, labels)
        tallies = [DeltaDraws(direction) for _ in self.points]
        for i in range(self.draws):
            rows = torch.randint(
                len(labels), (max(p.examples for p in self.points),), generator=stream(seed, "draw", i)
            )
            self._draw(network, before, inputs[rows], labels[rows], tallies)
            progress(i + 1, self.draws)
        return self._finding(tallies, float(direction.norm()))

    def _draw(
        self, network: Network, before: Sequence[Tensor], inputs: Tensor, labels: Tensor, tallies: Sequence[DeltaDraws]
    ) -> None:
        """Add one delta to each point; points that differ in their steps alone share one training."""
        deltas: dict[tuple[float, int, int], Tensor] = {}
        longest = max(p.steps for p in self.points)
        for point, tally in zip(self.points, tallies, strict=True):
            name, size = (point.lr, point.clients, point.examples), point.examples // point.clients
            if name not in deltas:
                images, classes = (torch.split(t[: point.examples], size) for t in (inputs, labels))
                deltas[name] = divergences(network, before, list(zip(images, classes, strict=True)), point.lr, longest)
            tally.add(deltas[name][point.steps])

    def seconds(self, load: Workload) -> float:
        steps_by_setting = {(p.lr, p.clients, p.examples): p.steps for p in self.points}
        steps = sum(2 * longest * load.gradient(examples) for (_, _, examples), longest in steps_by_setting.items())
        return DOUBLE * (self.draws * steps + 3 * load.examples * load.gradient(1))

    def _finding(self, tallies: Sequence[DeltaDraws], size: float) -> ProbeResult:
        """Return the exponents of both means, the measured constant of the lemma, and a plot."""
        lemma = [point.factor * size for point in self.points]
        norms = [tally.mean_of_norms for tally in tallies]
        of_mean = [norm for tally in tallies if (norm := tally.norm_of_mean()) is not None]
        pairs = list(zip(tallies, self.points, strict=True))
        measures = {
            "distance": exponent(self.values, norms),
            "constant": statistics.fmean(tally.along / point.factor for tally, point in pairs),
            "constant_error": statistics.fmean(tally.along_error / point.factor for tally, point in pairs),
        }
        series = {
            "E‖δ‖": list(zip(self.values, norms, strict=True)),
            "Lemma 1": list(zip(self.values, lemma, strict=True)),
        }
        if len(of_mean) == len(tallies):  # else chance hides the mean somewhere, and there is no exponent of it
            measures["expectation"] = exponent(self.values, of_mean)
            measures["share"] = statistics.fmean(m / n for m, n in zip(of_mean, norms, strict=True))
            series = {"‖E[δ]‖": list(zip(self.values, of_mean, strict=True)), **series}
        line = {"title": "distance of the updates", "axis": self.axis, "points": series}
        return ProbeResult({"extra": {"measures": measures, "lines": [line]}})
