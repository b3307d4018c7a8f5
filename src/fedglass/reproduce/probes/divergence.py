"""Lemma 1 of the curious client, measured: how far a super-client's update is from the clients' mean."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedglass.analysis.super_client import Draws, Scatter, covariance, divergences, exponent, lemma_factor
from fedglass.attack.parts import Progress
from fedglass.audit.probe import Finding
from fedglass.audit.target import Target
from fedglass.core.rng import stream
from fedglass.core.types import BatchNorm
from fedglass.models.network import Network
from fedglass.reproduce.cost import Load
from fedglass.reproduce.curves import Lines

DOUBLE = 2.0
"""What double precision costs, in plain gradients."""


@dataclass(frozen=True)
class Place:
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
    places: tuple[Place, ...]


@dataclass(frozen=True)
class Divergence:
    """Draws the clients' examples from the pool behind the message, with replacement, as the lemma demands.

    The same draws serve every place of the sweep. All in double precision: the differences are small.
    """

    accelerated: ClassVar[bool] = False
    attack: ClassVar[None] = None

    sweep: Sweep
    draws: int = 24

    def measure(self, target: Target, seed: int, progress: Progress) -> Finding:
        seen, truth = target.observation, target.known_truth
        network = Network(seen.model.double(), {k: v.double() for k, v in seen.buffers.items()}, BatchNorm.FROZEN)
        before = [seen.before[name].double() for name in network.names]
        inputs, labels = seen.knows.whitening.whiten(truth.images.double()), truth.labels
        direction = covariance(network, before, inputs, labels)
        tallies = [Draws(direction) for _ in self.sweep.places]
        for i in range(self.draws):
            rows = torch.randint(
                len(labels), (max(p.examples for p in self.sweep.places),), generator=stream(seed, "draw", i)
            )
            self._draw(network, before, inputs[rows], labels[rows], tallies)
            progress(i + 1, self.draws)
        return _finding(self.sweep, [tally.scatter() for tally in tallies], float(direction.norm()))

    def _draw(
        self, network: Network, before: Sequence[Tensor], inputs: Tensor, labels: Tensor, tallies: Sequence[Draws]
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

    def seconds(self, load: Load) -> float:
        places = {(p.lr, p.clients, p.examples): p.steps for p in self.sweep.places}
        steps = sum(2 * longest * load.gradient(examples) for (_, _, examples), longest in places.items())
        return DOUBLE * (self.draws * steps + 3 * load.examples * load.gradient(1))


def _finding(sweep: Sweep, found: Sequence[Scatter], size: float) -> Finding:
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
    lines = Lines("distance of the updates", sweep.axis, points)
    return Finding({"extra": {"measures": measures, "lines": [asdict(lines)]}})
