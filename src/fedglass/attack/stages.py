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
    Progress,
    binding_of,
)
from fedglass.attack.terms.term import Term
from fedglass.core.errors import UsageError
from fedglass.core.types import Candidate, Knowledge, Observation


def energy_rank(energy: float) -> float:
    """Return a key for sorting runs by their energy; one that is not finite comes last."""
    return energy if math.isfinite(energy) else math.inf


def progress_part(progress: Progress, index: int, parts: int) -> Progress:
    """Return the part of a progress bar for one of several restarts, stages or guesses."""
    return lambda done, total: progress(index * total + done, parts * total)


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
        if all(torch.equal(first.sort(0).values, other.sort(0).values) for other in later):
            return bounds[0]
    return labels.bind(with_mean_update(observation), generator())


def with_mean_update(observation: Observation) -> Observation:
    """Replace the first round's update by the mean of all rounds, for labels, which noise hides first.

    The rounds start from different weights, so that everything computed with the weights is an approximation.
    """
    updates = [one_round.update for one_round in (observation, *observation.also)]
    mean = {name: torch.stack([update[name] for update in updates]).mean(0) for name in observation.update}
    return replace(observation, update=mean, also=())
