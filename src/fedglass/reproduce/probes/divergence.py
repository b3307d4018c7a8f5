"""Lemma 1 of the curious client, measured: how far a super-client's update is from the clients' mean."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedglass.attack.parts import Progress
from fedglass.audit.cases import ProbeResult
from fedglass.audit.target import Target
from fedglass.core.errors import UsageError
from fedglass.core.rng import stream
from fedglass.core.types import BatchNorm, Training
from fedglass.fl.local import Batch, MeanGradient, Step
from fedglass.models.network import Network
from fedglass.reproduce.charts import LogPlot
from fedglass.reproduce.cost import Workload
from fedglass.reproduce.probes.geometry import local_path

# How far one super-client's update is from the mean of several clients' [Wilson et al., 2024, Appendix A].
#
# K clients take tau full-batch steps each and are averaged by their sizes; the super-client takes tau full-batch
# steps on all N examples. With H_k and g_k the Hessian and gradient of client k's mean loss at the common start,
#
#     delta(tau) = W_fed - W_single = lr^2 tau (tau - 1) / 2 * (sum_k N_k/N H_k g_k - H g) + O(lr^3).
#
# The paper's Lemma 1 is about its expectation over examples drawn independently:
#
#     E[delta] = lr^2 tau (tau - 1) / 2 * (K - 1)/N * Cov(J, g).
#
# One draw is another matter. It scatters about that mean, and an adversary meets draws: the mean of the norms is at
# least
# the norm of the mean, and need not go with K as that does.


ClientExamples = tuple[Tensor, Tensor]
"""Whitened inputs and labels of one client."""


def divergences(
    network: Network, before: Sequence[Tensor], clients: Sequence[ClientExamples], lr: float, steps: int
) -> Tensor:
    """delta(tau) for tau = 0, 1 .. steps, all parameters as one vector.  # -> (steps + 1, parameters)"""
    if not clients or steps < 1:
        raise UsageError(f"A divergence needs clients and steps >= 1, got {len(clients)} clients and {steps} steps.")
    counts = [len(labels) for _, labels in clients]
    together = (torch.cat([inputs for inputs, _ in clients]), torch.cat([labels for _, labels in clients]))
    found = -_full_batch(network, before, together, lr, steps)
    for client, count in zip(clients, counts, strict=True):
        found += _full_batch(network, before, client, lr, steps) * (count / sum(counts))
    return found


def covariance(network: Network, before: Sequence[Tensor], inputs: Tensor, labels: Tensor) -> Tensor:
    """Cov(J, g) over the given examples: the mean of H_i g_i less H g, as one vector.  # -> (parameters,)

    H g is half the gradient of |g|^2, so that this is half the gradient of the trace of the gradients' covariance.
    """
    each = torch.stack(
        [_half_gradient_of_square(network, before, x[None], y[None]) for x, y in zip(inputs, labels, strict=True)]
    )
    return each.mean(0) - _half_gradient_of_square(network, before, inputs, labels)


def lemma_factor(lr: float, steps: int, clients: int, examples: int) -> float:
    """What E[delta] is of Cov(J, g) [Eq. 31]; the lemma's statement leaves the half out.

    >>> lemma_factor(lr=0.5, steps=3, clients=5, examples=8)
    0.375
    """
    return lr**2 * steps * (steps - 1) / 2 * (clients - 1) / examples


@dataclass(frozen=True)
class Scatter:
    """What many draws of delta have in common, and how far each is from zero."""

    of_mean: float | None
    """The norm of E[delta], without the bias of few draws; None where chance hides it."""
    mean_of_norms: float
    """E[norm of delta]."""
    along: float
    """The mean of delta along Cov(J, g), in units of its norm: the lemma's factor, if the lemma holds."""
    along_error: float
    """Standard error of that mean."""


class DeltaDraws:
    """Takes draws of delta one by one, and keeps none of them.

    |mean|^2 is too large by the variance of the mean, so that pairs of different draws are averaged instead:
    (|sum|^2 - sum of squares) / (n (n - 1)).

    >>> same = DeltaDraws(torch.tensor([3.0, 4.0]))
    >>> for _ in range(3):
    ...     same.add(torch.tensor([3.0, 4.0]))
    >>> same.scatter()
    Scatter(of_mean=5.0, mean_of_norms=5.0, along=1.0, along_error=0.0)
    """

    def __init__(self, direction: Tensor) -> None:
        """`direction` is Cov(J, g)."""
        self._direction, self._total = direction, torch.zeros_like(direction)
        self._norms: list[float] = []
        self._places: list[float] = []

    def add(self, delta: Tensor) -> None:
        self._total += delta
        self._norms.append(float(delta.norm()))
        self._places.append(float(delta @ self._direction / self._direction.square().sum()))

    def scatter(self) -> Scatter:
        count = len(self._norms)
        if count < 2:
            raise UsageError(f"A mean over draws needs at least 2 of them, got {count}.")
        square = (float(self._total.square().sum()) - sum(n * n for n in self._norms)) / (count * (count - 1))
        error = statistics.stdev(self._places) / math.sqrt(count)
        of_mean = math.sqrt(square) if square > 0 else None
        return Scatter(of_mean, statistics.fmean(self._norms), statistics.fmean(self._places), error)


def exponent(xs: Sequence[float], ys: Sequence[float]) -> float:
    """p of the power law y ~ x^p that fits best on a log scale.

    >>> round(exponent([1.0, 2.0, 4.0], [3.0, 12.0, 48.0]), 6)
    2.0
    """
    if len(xs) != len(ys) or len(set(xs)) < 2 or not all(0 < v < math.inf for v in (*xs, *ys)):
        raise UsageError("An exponent needs two lists of positive numbers of one length, at least two places apart.")
    x, y = ([math.log(v) for v in values] for values in (xs, ys))
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    across = sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True))
    return across / sum((a - mean_x) ** 2 for a in x)


def _full_batch(network: Network, before: Sequence[Tensor], client: ClientExamples, lr: float, steps: int) -> Tensor:
    """How far the weights are from the start after each step.  # (steps + 1, parameters)"""
    batches = [Batch(epoch, slice(None)) for epoch in range(steps)]
    ways = local_path(network, before, *client, batches, Training(lr, epochs=steps))
    start = _vector(before)
    return torch.stack([_vector(weights) - start for weights in ways])


def _half_gradient_of_square(network: Network, before: Sequence[Tensor], inputs: Tensor, labels: Tensor) -> Tensor:
    weights = [w.detach().requires_grad_() for w in before]
    gradient = MeanGradient().gradient(Step(network, weights, inputs, labels, differentiable=True))
    square = torch.stack([g.square().sum() for g in gradient]).sum() / 2
    return _vector(torch.autograd.grad(square, weights, materialize_grads=True))


def _vector(tensors: Iterable[Tensor]) -> Tensor:
    return torch.cat([t.detach().flatten() for t in tensors])


DOUBLE = 2.0
"""What double precision costs, in plain gradients."""


@dataclass(frozen=True)
class SweepPoint:
    """One round: learning rate, local steps, clients, and examples of all of them."""

    lr: float
    steps: int
    clients: int
    examples: int

    @property
    def factor(self) -> float:
        return lemma_factor(self.lr, self.steps, self.clients, self.examples)


@dataclass(frozen=True)
class Sweep:
    """Rounds in which one quantity changes, with that quantity in each: the exponent is fitted in it."""

    axis: str
    values: tuple[float, ...]
    places: tuple[SweepPoint, ...]


@dataclass(frozen=True)
class Divergence:
    """Draws the clients' examples from the pool behind the message, with replacement, as the lemma demands.

    The same draws serve every place of the sweep. All in double precision: the differences are small.
    """

    accelerated: ClassVar[bool] = False
    attack: ClassVar[None] = None

    sweep: Sweep
    draws: int = 24

    def measure(self, target: Target, seed: int, progress: Progress) -> ProbeResult:
        seen, truth = target.observation, target.known_truth
        network = Network(seen.model.double(), {k: v.double() for k, v in seen.buffers.items()}, BatchNorm.FROZEN)
        before = [seen.before[name].double() for name in network.names]
        inputs, labels = seen.knows.whitening.whiten(truth.images.double()), truth.labels
        direction = covariance(network, before, inputs, labels)
        tallies = [DeltaDraws(direction) for _ in self.sweep.places]
        for i in range(self.draws):
            rows = torch.randint(
                len(labels), (max(p.examples for p in self.sweep.places),), generator=stream(seed, "draw", i)
            )
            self._draw(network, before, inputs[rows], labels[rows], tallies)
            progress(i + 1, self.draws)
        return _finding(self.sweep, [tally.scatter() for tally in tallies], float(direction.norm()))

    def _draw(
        self, network: Network, before: Sequence[Tensor], inputs: Tensor, labels: Tensor, tallies: Sequence[DeltaDraws]
    ) -> None:
        """One delta for each place; places that differ in their steps alone are met on one way."""
        ways: dict[tuple[float, int, int], Tensor] = {}
        longest = max(p.steps for p in self.sweep.places)
        for place, tally in zip(self.sweep.places, tallies, strict=True):
            name, size = (place.lr, place.clients, place.examples), place.examples // place.clients
            if name not in ways:
                images, classes = (torch.split(t[: place.examples], size) for t in (inputs, labels))
                ways[name] = divergences(network, before, list(zip(images, classes, strict=True)), place.lr, longest)
            tally.add(ways[name][place.steps])

    def seconds(self, load: Workload) -> float:
        places = {(p.lr, p.clients, p.examples): p.steps for p in self.sweep.places}
        steps = sum(2 * longest * load.gradient(examples) for (_, _, examples), longest in places.items())
        return DOUBLE * (self.draws * steps + 3 * load.examples * load.gradient(1))


def _finding(sweep: Sweep, found: Sequence[Scatter], size: float) -> ProbeResult:
    """Exponents of both means, what the lemma's constant comes out as, and the drawing."""
    lemma = [place.factor * size for place in sweep.places]
    norms = [each.mean_of_norms for each in found]
    of_mean = [each.of_mean for each in found if each.of_mean is not None]
    ratios = [each.along / place.factor for each, place in zip(found, sweep.places, strict=True)]
    measures = {
        "distance": exponent(sweep.values, norms),
        "constant": statistics.fmean(ratios),
        "constant_error": statistics.fmean(
            each.along_error / place.factor for each, place in zip(found, sweep.places, strict=True)
        ),
    }
    points = {
        "E‖δ‖": list(zip(sweep.values, norms, strict=True)),
        "Lemma 1": list(zip(sweep.values, lemma, strict=True)),
    }
    if len(of_mean) == len(found):  # else chance hides the mean somewhere, and there is no exponent of it
        measures["expectation"] = exponent(sweep.values, of_mean)
        measures["share"] = statistics.fmean(m / n for m, n in zip(of_mean, norms, strict=True))
        points = {"‖E[δ]‖": list(zip(sweep.values, of_mean, strict=True)), **points}
    lines = LogPlot("distance of the updates", sweep.axis, points)
    return ProbeResult({"extra": {"measures": measures, "lines": [asdict(lines)]}})
