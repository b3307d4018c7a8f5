"""Stages that explain the messages of several rounds by the same examples."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from fedglass.attack.needs import reads_of
from fedglass.attack.parts import Binding, Bound, BoundForward, BoundTerm, Evaluation, Forward, Labels
from fedglass.attack.terms.term import Term
from fedglass.core.errors import UsageError
from fedglass.core.facts import Fact
from fedglass.core.types import Candidate, Observation

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


def labels_of(labels: Labels, observation: Observation, generator: Callable[[], torch.Generator]) -> Bound:
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
    return labels.bind(averaged(observation), generator())


def _alike(one: Tensor, other: Tensor) -> bool:
    """Whether they are the same labels, in whatever order."""
    return one.shape == other.shape and bool(torch.equal(one.sort(0).values, other.sort(0).values))


def averaged(observation: Observation) -> Observation:
    """The mean of the rounds' updates in place of the first one's, for labels, which noise hides first.

    The rounds start from different weights, so that for what is computed with these it is an approximation.
    """
    if not observation.also:
        return observation
    updates = [each.update for each in (observation, *observation.also)]
    mean = {name: torch.stack([update[name] for update in updates]).mean(0) for name in observation.update}
    return replace(observation, update=mean, also=())
