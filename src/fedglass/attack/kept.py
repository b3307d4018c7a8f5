"""Attacks under hypotheses about whose updates got through the server's rule."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import combinations, islice
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from fedglass.attack.hypotheses import AnyAttack, refined_by, refinements_of
from fedglass.attack.own import check_others_spoke
from fedglass.attack.parts import Progress, Refine, silent
from fedglass.attack.stages import part, rank
from fedglass.core.errors import UsageError
from fedglass.core.facts import Fact
from fedglass.core.types import Kept, Observation, Reconstruction


class Choice(Protocol):
    """Which of the round's clients a hypothesis supposes behind the message."""

    told: ClassVar[bool]
    """Whether it is worth a try where it is known whose updates got through: the attack is then played as it is."""

    def guesses(self, others: int) -> Iterator[Kept]:
        """Of so many others."""
        ...


@dataclass(frozen=True)
class Everybody:
    """All that took part."""

    told: ClassVar[bool] = True

    def guesses(self, others: int) -> Iterator[Kept]:
        yield Kept(tuple(range(others)), own=True)


@dataclass(frozen=True)
class AllOthers:
    """All but the adversary itself, whose update was dropped, as that of a poisoner is."""

    told: ClassVar[bool] = False

    def guesses(self, others: int) -> Iterator[Kept]:
        yield Kept(tuple(range(others)), own=False)


@dataclass(frozen=True)
class OneOther:
    """One of the others alone, as Krum has it; each of them is possible."""

    told: ClassVar[bool] = True

    def guesses(self, others: int) -> Iterator[Kept]:
        yield from (Kept((i,), own=False) for i in range(others))


@dataclass(frozen=True)
class SomeOthers:
    """Some of the others and perhaps the adversary, as DnC, FreqFed and Multi-Krum have it: the larger part first."""

    told: ClassVar[bool] = False

    def guesses(self, others: int) -> Iterator[Kept]:
        for count in range(others - 1, 0, -1):
            for chosen in combinations(range(others), count):
                yield Kept(chosen, own=True)
                if count > 1:
                    yield Kept(chosen, own=False)


@dataclass(frozen=True)
class TryKept:
    """An attack on those of the round's clients that are supposed to be behind the message; the lowest energy wins.

    A participant knows who took part, and not whose updates a robust rule dropped. Others of the same size and, where
    an oracle has told them, the same labels can not be told apart: one of them stands for all. Of several guesses, the
    first `most`, each is tried with a quarter of a `share` of the attack's iterations, the best quarter with all
    of it, and the best one is played. Where it is known whose updates got through, there is nothing to guess.
    """

    attack: AnyAttack
    choice: Choice
    mean: bool = False
    """Whether the rule takes the mean of what it keeps, in which the adversary's own update has its part of all."""
    share: float = 0.1
    most: int = 64

    supplies: ClassVar[frozenset[Fact]] = frozenset({Fact.EXAMPLES})

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1 or self.most < 1:
            raise UsageError(
                f"kept.share must be above 0 and at most 1, kept.most at least 1, got {self.share} and {self.most}."
            )

    def check(self, observation: Observation) -> None:
        check_others_spoke(observation)
        self.attack.check(self._supposing(observation, self._guesses(observation)[0]))

    def run(self, observation: Observation, seed: int = 0, progress: Progress = silent) -> Reconstruction:
        check_others_spoke(observation)
        guesses = self._guesses(observation)
        several = len(guesses) > 1
        best = self._likeliest(observation, guesses, seed, part(progress, 0, 2)) if several else guesses[0]
        supposed = self._supposing(observation, best)
        found = self.attack.run(supposed, seed, part(progress, 1, 2) if several else progress)
        return replace(found, kept=best, grouping=() if self.mean else _grouping(supposed, found))

    def shortened(self, share: float) -> TryKept:
        return replace(self, attack=self.attack.shortened(share))

    @property
    def refinements(self) -> tuple[Refine, ...]:
        return refinements_of(self.attack)

    def refined_by(self, parts: tuple[Refine, ...]) -> TryKept:
        return replace(self, attack=refined_by(self.attack, parts))

    def energy_of(self, observation: Observation, pixels: Tensor, labels: Tensor, like: Reconstruction) -> float:
        return self.attack.energy_of(self._as_supposed(observation, pixels, like), pixels, labels, like)

    def _guesses(self, observation: Observation) -> list[Kept | None]:
        """What is possible; None alone where it is known."""
        present = observation.knows.present
        if present is not None:
            kinds = _kinds(observation)
            alike = {
                (tuple(sorted(kinds[i] for i in guess.others)), guess.own): guess
                for guess in reversed(list(islice(self.choice.guesses(len(present) - 1), 2**16)))
            }
            found: list[Kept | None] = [*reversed(alike.values())]
            if not found:
                raise UsageError(
                    f"{self.choice} is not possible in a round of {len(present)} clients: suppose another."
                )
            return found[: self.most]
        if not self.choice.told:
            raise UsageError(
                f"{self.choice} is a guess about whose updates got through the rule, which the adversary knows: set "
                'adversary.knows_kept = false, or suppose rule = "mean".'
            )
        return [None]

    def _likeliest(
        self, observation: Observation, guesses: list[Kept | None], seed: int, progress: Progress
    ) -> Kept | None:
        """The guess of the lowest energy after some iterations; most have been left out after a few."""
        left = list(range(len(guesses)))
        for share, keep in ((self.share / 4, max(4, len(guesses) // 4)), (self.share, 1)):
            brief, parts = self.attack.shortened(share), len(left) + 1
            tried = [
                (rank(brief.run(self._supposing(observation, guesses[i]), seed, part(progress, at, parts)).energy), i)
                for at, i in enumerate(left)
            ]
            left = [i for _, i in sorted(tried)[:keep]]
        return guesses[left[0]]

    def _supposing(self, observation: Observation, kept: Kept | None) -> Observation:
        """The same message to an adversary that takes these for the clients behind it."""
        own, present = observation.own, observation.knows.present
        if own is None or present is None or kept is None:
            return self._with_share(observation)
        labels = observation.knows.labels
        chosen = [*kept.others, *([len(present) - 1] if kept.own else [])]
        each = None if labels is None else torch.split(labels, list(present))
        knows = replace(
            observation.knows,
            examples=sum(present[i] for i in chosen),
            clients=len(chosen),
            sizes=tuple(present[i] for i in chosen),
            labels=None if each is None else torch.cat([each[i] for i in chosen]),
            counted=True,
            present=None,
        )
        supposed = replace(observation, knows=knows, own=replace(own, share=None if kept.own else 0.0))
        return self._with_share(supposed)

    def _with_share(self, observation: Observation) -> Observation:
        """What the adversary's own update weighs, where a mean is supposed and it got through."""
        own, knows = observation.own, observation.knows
        if not self.mean or own is None or own.share is not None or not knows.counted:
            return observation
        return replace(observation, own=replace(own, share=len(own.labels) / knows.examples))

    def _as_supposed(self, observation: Observation, pixels: Tensor, like: Reconstruction) -> Observation:
        """For given images: as in the reconstruction, or, where they are others in number, as their number tells.

        The adversary's own come last, where they are among them.
        """
        own, present = observation.own, observation.knows.present
        if own is None or present is None:
            return self._with_share(observation)
        mine = len(own.labels)
        beside = len(pixels) > mine and torch.equal(pixels[-mine:].to(own.images), own.images)
        fitting = (_with_so_many(present[:-1], len(pixels) - count, has) for count, has in ((mine, True), (0, False)))
        told = [like.kept, *(fitting if beside else reversed(list(fitting)))]
        counts = [-1 if kept is None else sum(present[i] for i in kept.others) + mine * kept.own for kept in told]
        agree = [kept for kept, n in zip(told, counts, strict=True) if kept is not None and n == len(pixels)]
        if not agree:
            raise UsageError(
                f"{len(pixels)} images are those of no clients of the round, who have {present} examples: give all "
                "images of some of them."
            )
        return self._supposing(observation, next((kept for kept in agree if kept.own == beside), agree[0]))


def _kinds(observation: Observation) -> list[tuple[int, ...]]:
    """What tells the others apart: their sizes, and their labels where an oracle has told them."""
    present, labels = observation.knows.present or (), observation.knows.labels
    if labels is None:
        return [(size,) for size in present[:-1]]
    return [(len(each), *each.tolist()) for each in torch.split(labels, list(present))[:-1]]


def _grouping(supposed: Observation, found: Reconstruction) -> tuple[tuple[int, ...], ...]:
    """The labels of each of the others as they were found; nothing where an oracle has told them."""
    sizes, labels = supposed.knows.sizes or (), supposed.knows.labels
    others = sizes[:-1] if Fact.OWN in supposed.facts else sizes
    if labels is not None or not others or sum(others) > len(found.labels):
        return ()
    return tuple(tuple(each.tolist()) for each in torch.split(found.labels[: sum(others)], list(others)))


def _with_so_many(sizes: tuple[int, ...], examples: int, own: bool) -> Kept | None:
    """Some of the others that have so many examples together."""
    ways: dict[int, tuple[int, ...]] = {0: ()}
    for i, size in enumerate(sizes):
        ways = {n + size: (*way, i) for n, way in ways.items()} | ways
    return Kept(ways[examples], own) if ways.get(examples) else None
