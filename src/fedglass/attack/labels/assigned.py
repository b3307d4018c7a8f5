"""Labels that are optimised with the images, and labels assigned to clients before any image is sought."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, combinations
from typing import ClassVar

import torch
from torch import Tensor

from fedglass.attack.forward.target import like
from fedglass.attack.labels.given import fixed_labels
from fedglass.attack.parts import Bound, Evaluation, Forward, Labels, binding_of, check_labels
from fedglass.attack.stages import energy_rank
from fedglass.attack.terms.term import Term
from fedglass.core.errors import UsageError
from fedglass.core.facts import Fact
from fedglass.core.losses import TargetKind, target_kind
from fedglass.core.registry import register
from fedglass.core.text import DLG
from fedglass.core.types import Candidate, Observation, Unknown


@register("labels", "joint", summary="free logits, optimised together with the images", paper=DLG)
@dataclass(frozen=True)
class JointLabels:
    """Softmax of free logits, started from N(0, 1) [Zhu et al., 2019, Algorithm 1].

    `rate` is relative to the solver's.
    """

    rate: float = 1.0

    def bind(self, observation: Observation, generator: torch.Generator) -> Bound:
        knows = observation.knows
        start = torch.randn(knows.examples, knows.classes, generator=generator).to(like(observation))
        return Bound((Unknown(start, rate=self.rate),), lambda tensors: tensors[0].softmax(dim=-1))


Assignment = tuple[int, ...]
"""The labels of the first client, then those of the second, and so on."""
LabelEnergy = Callable[[Assignment], float]
"""The energy of labels while other pictures replace the images: the lower, the better they explain the message."""


@dataclass(frozen=True)
class AssignedLabels:
    """Labels, client by client, under which substitute pictures explain the message best.

    Through a median or a trimmed mean it matters which client has which labels. Counts of the last layer suppose a mean
    and are wrong there: a class that one client has is cut away where it stands out. While the network is little
    trained, the updates depend mostly on labels: with one picture for all images, the mean of the adversary's own
    or else noise, the energy of the true assignment is the lowest.

    The search starts from the result of `labels`, and from random labels up to `starts` in all. Each label is changed
    to the class that lowers the energy most, then labels of different clients are exchanged, until nothing helps or
    `trials` assignments have been compared in all. Each costs one simulation, less than one step of a search. Labels
    that are unknowns themselves are left alone. The paper does not say where labels come from.
    """

    labels: Labels
    forward: Forward
    objective: Term
    trials: int = 1000
    starts: int = 3

    uses: ClassVar[frozenset[Fact]] = frozenset({Fact.OWN})

    def __post_init__(self) -> None:
        if self.trials < 1 or self.starts < 1:
            raise UsageError(
                f"assigned_labels.trials and starts must be at least 1, got {self.trials} and {self.starts}."
            )

    def check(self, observation: Observation) -> None:
        """Refuse what `bind` would refuse of this network, without its work."""
        check_labels(self.labels, observation, torch.Generator())

    def bind(self, observation: Observation, generator: torch.Generator) -> Bound:
        first = self.labels.bind(observation, generator)
        if first.unknowns or target_kind(observation.knows.objective) is not TargetKind.CLASSES:
            return first
        recovered = first.decode([])
        energy = self._energy(observation, substitute_images(observation, generator))
        sizes, classes = observation.knows.sizes or (len(recovered),), observation.knows.classes
        drawn = [torch.randint(classes, recovered.shape, generator=generator) for _ in range(self.starts - 1)]
        starts = [tuple(labels.tolist()) for labels in (recovered, *drawn)]
        best = lowest_assignment(energy, starts, sizes, classes, self.trials)
        return fixed_labels(torch.tensor(best, device=recovered.device))

    def _energy(self, observation: Observation, pictures: Tensor) -> LabelEnergy:
        forward = self.forward.bind(observation)
        objective = self.objective.bind(binding_of(forward, observation.knows))
        unknowns = [unknown.start for unknown in forward.unknowns]

        def energy(labels: Assignment) -> float:
            candidate = Candidate(pictures, torch.tensor(labels, device=pictures.device))
            return float(objective(Evaluation(forward.predict(candidate, unknowns), candidate)).detach())

        return energy


def substitute_images(observation: Observation, generator: torch.Generator) -> Tensor:
    """Return one picture for all images: the mean of the adversary's own, or noise.  # (1, n, c, h, w), whitened"""
    knows, contribution = observation.knows, observation.own
    if contribution is None or not len(contribution.labels):
        picture = knows.low + (knows.high - knows.low) * torch.rand(1, *knows.shape, generator=generator)
    else:
        picture = contribution.images.mean(0, keepdim=True)
    return knows.whitening.whiten(picture.to(like(observation))).expand(1, knows.examples, *knows.shape)


def lowest_assignment(
    energy: LabelEnergy, starts: Sequence[Assignment], sizes: tuple[int, ...], classes: int, trials: int
) -> Assignment:
    """Return labels of low energy, by steps that each lower it, within `trials` comparisons.

    >>> lowest_assignment(lambda labels: abs(labels[0] - 2) + abs(labels[1] - 1), [(0, 0)], (1, 1), 3, trials=50)
    (2, 1)
    """
    energies: dict[Assignment, float] = {}

    def pick(current: Assignment, candidates: Iterable[Assignment]) -> Assignment:
        """Return the lowest of them; those beyond the number of trials are left out."""
        compared = [current]
        for candidate in candidates:
            if candidate not in energies and len(energies) < trials:
                energies[candidate] = energy(candidate)
            compared += [candidate] if candidate in energies else []
        return min(compared, key=lambda labels: energy_rank(energies.get(labels, math.inf)))

    def descend(start: Assignment) -> Assignment:
        """Descend from one start until no single step helps."""
        best, before = pick(start, [start]), None
        while best != before:
            before = best
            for i in range(len(start)):
                best = pick(best, [_in_order((*best[:i], label, *best[i + 1 :]), sizes) for label in range(classes)])
            if best == before:
                best = pick(best, _exchanged(best, sizes))
        return best

    ends = [descend(_in_order(start, sizes)) for start in starts]
    return pick(ends[0], ends)


def _exchanged(labels: Assignment, sizes: tuple[int, ...]) -> Iterator[Assignment]:
    """Yield the labels with two labels of different clients exchanged."""
    owners = [client for client, size in enumerate(sizes) for _ in range(size)]
    for i, j in combinations(range(len(labels)), 2):
        if owners[i] != owners[j]:
            other = list(labels)
            other[i], other[j] = labels[j], labels[i]
            yield _in_order(tuple(other), sizes)


def _in_order(labels: Assignment, sizes: tuple[int, ...]) -> Assignment:
    """Sort each client's labels: with one picture for all images their order does not matter."""
    ends = list(accumulate(sizes))
    return tuple(label for size, end in zip(sizes, ends, strict=True) for label in sorted(labels[end - size : end]))
