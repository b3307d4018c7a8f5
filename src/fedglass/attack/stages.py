"""Runs from several starts, and stages that explain the messages of several rounds by the same examples."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from fedglass.attack.parts import (
    Bound,
    BoundForward,
    BoundTerm,
    Evaluation,
    Forward,
    Labels,
    PausableRun,
    Progress,
    binding_of,
    run_to_end,
)
from fedglass.attack.terms.term import Term
from fedglass.core.errors import UsageError
from fedglass.core.types import Candidate, Knowledge, Observation, Reconstruction

HALVINGS = (0.25, 0.5)
"""Shares of the way at which the worse half of the starts is stopped: eight starts cost four complete runs. Measured
with Inverting Gradients on LeNet5, eight starts for each of four messages: the lowest energies up to 1/16, 1/8, 1/4 and
1/2 of the way have rank correlations of 0.2, 0.3, 0.6 and 0.9 with those at the end."""

Run = Callable[[int, Progress], PausableRun[Reconstruction]]
"""A run from the start of a seed."""


def run_all_starts(run: Run, seeds: Sequence[int], progress: Progress) -> Reconstruction:
    """Run each start to its end, and return the run of lowest energy."""
    runs = [run_to_end(run(seed, progress_part(progress, i, len(seeds)))) for i, seed in enumerate(seeds)]
    return min(runs, key=lambda run: energy_rank(run.energy))


def run_halving_starts(run: Run, seeds: Sequence[int], progress: Progress) -> Reconstruction:
    """Stop the worse half of the starts at each share (successive halving), and return the run of lowest energy."""
    total = round(1000 * halving_cost(len(seeds)))
    progress_of = _shared_progress(progress, total)
    runs = {seed: run(seed, progress_of(seed)) for seed in seeds}
    ended: dict[int, Reconstruction] = {}

    def advance(seed: int, share: float) -> float:
        """Continue up to that share of the way, and return the lowest energy since the last pause."""
        energies: list[float | Tensor] = []
        while seed not in ended:
            try:
                at, energy = next(runs[seed])
            except StopIteration as end:  # early, since the energy is no longer finite
                ended[seed] = end.value
                break
            energies.append(energy)
            if at >= share:
                break
        return min((energy_rank(float(energy)) for energy in energies), default=math.inf)

    for share in HALVINGS:
        energy_by_seed = {seed: advance(seed, share) for seed in seeds}
        seeds = sorted(seeds, key=energy_by_seed.__getitem__)[: math.ceil(len(seeds) / 2)]
    ends = [ended[seed] if seed in ended else run_to_end(runs[seed]) for seed in seeds]
    progress(total, total)
    return min(ends, key=lambda run: energy_rank(run.energy))


def energy_rank(energy: float) -> float:
    """Return a key for sorting runs by their energy; one that is not finite comes last."""
    return energy if math.isfinite(energy) else math.inf


def progress_part(progress: Progress, index: int, parts: int) -> Progress:
    """Return the part of a progress bar for one of several restarts, stages or guesses."""
    return lambda done, total: progress(index * total + done, parts * total)


def halving_cost(starts: int) -> float:
    """Return the cost of halving that many starts, in complete runs.

    >>> halving_cost(8), halving_cost(1)
    (4.0, 1.0)
    """
    cost, last = 0.0, 0.0
    for share in (*HALVINGS, 1.0):
        cost, last, starts = cost + starts * (share - last), share, math.ceil(starts / 2)
    return cost


def _shared_progress(progress: Progress, total: int) -> Callable[[int], Progress]:
    """Return a progress callback for each of several runs that take turns; the bar counts thousandths of a run."""
    shares: dict[int, float] = {}

    def of(key: int) -> Progress:
        def report(done: int, iterations: int) -> None:
            shares[key] = done / iterations
            progress(min(total, round(1000 * sum(shares.values()))), total)

        return report

    return of


def bind_forward(forward: Forward, observation: Observation) -> BoundForward:
    """Return the predictions for each round's message, one after another."""
    if not observation.also:
        return forward.bind(observation)
    bounds = [forward.bind(one_round) for one_round in (observation, *observation.also)]
    unknowns_of = _slices(len(bound.unknowns) for bound in bounds)

    def predict(candidate: Candidate, unknowns: Sequence[Tensor]) -> Sequence[Tensor]:
        per_round = zip(bounds, unknowns_of, strict=True)
        return [tensor for bound, part in per_round for tensor in bound.predict(candidate, unknowns[part])]

    return BoundForward(
        tuple(tensor for bound in bounds for tensor in bound.target),
        predict,
        tuple(name for bound in bounds for name in bound.names),
        tuple(replace(u, name=f"round {i}: {u.name}") for i, bound in enumerate(bounds) for u in bound.unknowns),
        bounds[0].batches,
        _slices(len(bound.names) for bound in bounds),
    )


def bind_objective(objective: Term, forward: BoundForward, knows: Knowledge) -> BoundTerm:
    """Return the mean of the objective over the rounds, so that priors have the same weight as in one round."""
    binding = binding_of(forward, knows)
    if not forward.rounds:
        return objective.bind(binding)
    terms = [
        objective.bind(replace(binding, target=binding.target[part], names=binding.names[part]))
        for part in forward.rounds
    ]

    def value(at: Evaluation) -> Tensor:
        per_round = zip(terms, forward.rounds, strict=True)
        return torch.stack([term(replace(at, predicted=at.predicted[part])) for term, part in per_round]).mean()

    return value


def _slices(lengths: Iterable[int]) -> tuple[slice, ...]:
    """Return the places of consecutive parts of these lengths."""
    return tuple(slice(*ends) for ends in pairwise(accumulate(lengths, initial=0)))


def labels_of_rounds(labels: Labels, observation: Observation, generator: Callable[[], torch.Generator]) -> Bound:
    """Return the labels on which all rounds agree, or else those of the mean update, which has less noise.

    The mean update belongs to no single model: it is worse wherever each message reveals the labels by itself.
    """
    if not observation.also:
        return labels.bind(observation, generator())
    try:
        bounds = [labels.bind(one, generator()) for one in (replace(observation, also=()), *observation.also)]
    except UsageError:  # one of the rounds has no message
        bounds = []
    if bounds and not any(bound.unknowns for bound in bounds):
        first, *later = [bound.decode(()) for bound in bounds]
        if all(_same_labels(first, other) for other in later):
            return bounds[0]
    return labels.bind(with_mean_update(observation), generator())


def _same_labels(one: Tensor, other: Tensor) -> bool:
    """Check that two tensors hold the same labels, in any order."""
    return one.shape == other.shape and bool(torch.equal(one.sort(0).values, other.sort(0).values))


def with_mean_update(observation: Observation) -> Observation:
    """Replace the first round's update by the mean of all rounds, for labels, which noise hides first.

    The rounds start from different weights, so that everything computed with the weights is an approximation.
    """
    if not observation.also:
        return observation
    updates = [one_round.update for one_round in (observation, *observation.also)]
    mean = {name: torch.stack([update[name] for update in updates]).mean(0) for name in observation.update}
    return replace(observation, update=mean, also=())
