"""The run of lowest energy from several starts: each to its end, or the worse half given up on the way."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from fedglass.attack.needs import reads_of
from fedglass.attack.parts import (
    Binding,
    Bound,
    BoundForward,
    BoundTerm,
    Evaluation,
    Forward,
    Labels,
    PausableRun,
    Progress,
    run_to_end,
)
from fedglass.attack.terms.term import Term
from fedglass.core.errors import UsageError
from fedglass.core.facts import Fact
from fedglass.core.types import Candidate, Observation, Reconstruction

HALVINGS = (0.25, 0.5)
"""Shares of the way at which the worse half of the starts is given up: eight starts cost four whole runs. Measured with
Inverting Gradients on LeNet5, eight starts for each of four messages: the lowest energies up to 1/16, 1/8, 1/4 and 1/2
of the way have rank correlations of 0.2, 0.3, 0.6 and 0.9 with those at the end."""

Run = Callable[[int, Progress], PausableRun[Reconstruction]]
"""The run from the start of a seed."""


def run_all_starts(run: Run, seeds: Sequence[int], progress: Progress) -> Reconstruction:
    """Return the run of lowest energy, after each was run to its end."""
    runs = [run_to_end(run(seed, progress_part(progress, i, len(seeds)))) for i, seed in enumerate(seeds)]
    return min(runs, key=lambda found: energy_rank(found.energy))


def run_halving_starts(run: Run, seeds: Sequence[int], progress: Progress) -> Reconstruction:
    """Return the run of lowest energy among those that were not given up on their way (successive halving)."""
    whole = round(1000 * halving_cost(len(seeds)))
    told = _together(progress, whole)
    starts = [_Start(run(seed, told(seed))) for seed in seeds]
    for share in HALVINGS:
        energies = {start: start.advance(share) for start in starts}
        starts = sorted(starts, key=lambda start: energies[start])[: math.ceil(len(starts) / 2)]
    best = min((start.finish() for start in starts), key=lambda found: energy_rank(found.energy))
    progress(whole, whole)
    return best


def energy_rank(energy: float) -> float:
    """For choosing among runs by their energy; one that is not a number comes last."""
    return energy if math.isfinite(energy) else math.inf


def progress_part(progress: Progress, index: int, parts: int) -> Progress:
    """The share of a progress bar that one restart or stage owns."""
    return lambda done, total: progress(index * total + done, parts * total)


class _Start:
    """A run from one start that can be paused."""

    def __init__(self, steps: PausableRun[Reconstruction]) -> None:
        self._steps = steps
        self._found: Reconstruction | None = None

    def advance(self, share: float) -> float:
        """Go on to that share of the way; the lowest energy since the last pause."""
        energies: list[float | Tensor] = []
        while self._found is None:
            try:
                at, energy = next(self._steps)
            except StopIteration as end:  # before its time: not finite any more
                self._found = end.value
                break
            energies.append(energy)
            if at >= share:
                break
        return min((energy_rank(float(energy)) for energy in energies), default=math.inf)

    def finish(self) -> Reconstruction:
        return run_to_end(self._steps) if self._found is None else self._found


def halving_cost(starts: int) -> float:
    """How many whole runs the halving of that many starts takes.

    >>> halving_cost(8), halving_cost(1)
    (4.0, 1.0)
    """
    cost, last = 0.0, 0.0
    for share in (*HALVINGS, 1.0):
        cost, last, starts = cost + starts * (share - last), share, math.ceil(starts / 2)
    return cost


def _together(progress: Progress, whole: int) -> Callable[[int], Progress]:
    """The progress bar, in thousandths of a run, of runs that take turns; each speaks by its own key."""
    shares: dict[int, float] = {}

    def of(key: int) -> Progress:
        def tell(done: int, total: int) -> None:
            shares[key] = done / total
            progress(min(whole, round(1000 * sum(shares.values()))), whole)

        return tell

    return of


# Stages that explain the messages of several rounds by the same examples.


MARK = "round "


@dataclass(frozen=True)
class EachRound:
    """What `forward` predicts of each round's message, one after another."""

    forward: Forward

    def reads(self, observation: Observation) -> frozenset[Fact]:
        return reads_of(self.forward, observation)

    def bind(self, observation: Observation) -> BoundForward:
        if not observation.also:
            return self.forward.bind(observation)
        bounds = [self.forward.bind(each) for each in (observation, *observation.also)]
        ends = list(accumulate((len(bound.unknowns) for bound in bounds), initial=0))
        own = [slice(*ends) for ends in pairwise(ends)]

        def predict(candidate: Candidate, unknowns: Sequence[Tensor]) -> Sequence[Tensor]:
            rows = zip(bounds, own, strict=True)
            return [tensor for bound, part in rows for tensor in bound.predict(candidate, unknowns[part])]

        return BoundForward(
            tuple(tensor for bound in bounds for tensor in bound.target),
            predict,
            tuple(f"{MARK}{i}: {name}" for i, bound in enumerate(bounds) for name in bound.names),
            tuple(replace(u, name=f"{MARK}{i}: {u.name}") for i, bound in enumerate(bounds) for u in bound.unknowns),
            bounds[0].batches,
        )


@dataclass(frozen=True)
class MeanOverRounds(Term):
    """The mean of a term's energies in each round, so that priors weigh what they do in one."""

    term: Term

    def bind(self, binding: Binding) -> BoundTerm:
        if not binding.names[0].startswith(MARK):  # one round alone
            return self.term.bind(binding)
        rounds = [name.partition(": ")[0] for name in binding.names]
        starts = [i for i, name in enumerate(rounds) if i == 0 or name != rounds[i - 1]]
        parts = [slice(*ends) for ends in pairwise([*starts, len(rounds)])]
        names = tuple(name.partition(": ")[2] for name in binding.names)
        terms = [self.term.bind(replace(binding, target=binding.target[p], names=names[p])) for p in parts]

        def value(at: Evaluation) -> Tensor:
            rows = zip(terms, parts, strict=True)
            return torch.stack([term(replace(at, predicted=at.predicted[part])) for term, part in rows]).mean()

        return value


def labels_of_rounds(labels: Labels, observation: Observation, generator: Callable[[], torch.Generator]) -> Bound:
    """The labels on which all rounds agree, or else those of the mean update, in which there is less noise.

    The mean belongs to no one model: it is worse wherever each message tells the labels by itself.
    """
    if not observation.also:
        return labels.bind(observation, generator())
    try:
        each = [labels.bind(one, generator()) for one in (replace(observation, also=()), *observation.also)]
    except UsageError:  # one of the rounds has no message
        each = []
    if each and not any(bound.unknowns for bound in each):
        found = [bound.decode(()) for bound in each]
        if all(_alike(found[0], other) for other in found[1:]):
            return each[0]
    return labels.bind(with_mean_update(observation), generator())


def _alike(one: Tensor, other: Tensor) -> bool:
    """Whether they are the same labels, in whatever order."""
    return one.shape == other.shape and bool(torch.equal(one.sort(0).values, other.sort(0).values))


def with_mean_update(observation: Observation) -> Observation:
    """The mean of the rounds' updates in place of the first one's, for labels, which noise hides first.

    The rounds start from different weights, so that for what is computed with these it is an approximation.
    """
    if not observation.also:
        return observation
    updates = [each.update for each in (observation, *observation.also)]
    mean = {name: torch.stack([update[name] for update in updates]).mean(0) for name in observation.update}
    return replace(observation, update=mean, also=())
