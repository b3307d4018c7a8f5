"""What a participant makes of its own part in the message: it knows its images, its labels and its update.

In a message the adversary's own examples come last, as they do in what the audit compares with.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from fedglass.attack.best_of import AnyAttack, Guess, Guesses
from fedglass.attack.images.pixels import like
from fedglass.attack.parts import Bound, Images, Labels
from fedglass.core.errors import UsageError
from fedglass.core.facts import Fact
from fedglass.core.tensors import Update
from fedglass.core.types import Knowledge, Observation, Own, Reconstruction

ECHO = 1e-4
"""Share of an update: what differs from it by less is that update, carried in single precision."""


class _OthersOnly(Guesses[AnyAttack, Own | None]):
    """An attack on the others' examples alone: the adversary's own images are appended to what it reconstructs.

    There is one guess. Its value is None where the message is attacked as it is.
    """

    @abstractmethod
    def others(self, observation: Observation) -> Observation:
        """Return the observation in which the others' examples are sought; itself where nothing is taken off."""

    def options(self, attack: AnyAttack, observation: Observation) -> list[Guess[Own | None]]:
        others = self.others(observation)
        value = None if others is observation else observation.own
        return [Guess(value, attack, others, observation.knows.examples - others.knows.examples)]

    def annotate(self, reconstruction: Reconstruction, guess: Guess[Own | None]) -> Reconstruction:
        return reconstruction if guess.value is None else append_own_images(reconstruction, guess.value)

    def recall(
        self, attack: AnyAttack, observation: Observation, pixels: Tensor, labels: Tensor, like: Reconstruction
    ) -> Guess[Own | None]:
        return self.options(attack, observation)[0]


@dataclass(frozen=True)
class SubtractOwnUpdate(_OthersOnly):
    """The message without the adversary's own update: (u - s u_own) / (1 - s).

    Exact where the message is a mean in which its own update has the share s: fewer images are sought, and of two
    clients the other one's update is bare. Where the share is not known, or the message contains nothing of its own,
    the message is attacked as it is.
    """

    uses: ClassVar[frozenset[Fact]] = frozenset({Fact.OWN, Fact.OWN_SHARE})

    def others(self, observation: Observation) -> Observation:
        return without_own_update(observation)


@dataclass(frozen=True)
class KeepOwnUpdate(_OthersOnly):
    """The message as it is, with the adversary's own update as one of those that went into the rule.

    For rules other than the mean, from which an update cannot be subtracted, and for a client that sent poison: no
    images are sought for its own update. The attack's operator takes it from the observation, see `Through`.
    """

    uses: ClassVar[frozenset[Fact]] = frozenset({Fact.OWN, Fact.OWN_SHARE})

    def others(self, observation: Observation) -> Observation:
        own = observation.own
        if own is None or Fact.OWN not in observation.facts:
            return observation
        check_own_examples(observation)
        return replace(observation, knows=_of_others(observation.knows, own))


@dataclass(frozen=True)
class FixOwnImages:
    """Images of the others as unknowns, and the adversary's own held at what they are known to be."""

    images: Images

    uses: ClassVar[frozenset[Fact]] = frozenset({Fact.OWN})

    def bind(self, observation: Observation, generator: torch.Generator, start: Tensor | None) -> Bound:
        own = observation.own
        if own is None or Fact.OWN not in observation.facts:
            return self.images.bind(observation, generator, start)
        check_own_examples(observation)
        n = observation.knows.examples - len(own.labels)
        known = observation.knows.whitening.whiten(own.images.to(like(observation)))[None]
        others = replace(observation, knows=replace(observation.knows, examples=n))
        inner = self.images.bind(others, generator, None if start is None else start[:, :n])

        def beside(images: Tensor) -> Tensor:
            return torch.cat([images, known.expand(len(images), *known.shape[1:])], dim=1)

        return Bound(
            inner.unknowns,
            lambda tensors: beside(inner.decode(tensors)),
            lambda images: beside(inner.nearest(images[:, :n])),
        )


@dataclass(frozen=True)
class LabelsOfOthers:
    """Labels of the others alone, found in what is left of the message where the adversary's own share is known."""

    labels: Labels

    uses: ClassVar[frozenset[Fact]] = frozenset({Fact.OWN, Fact.OWN_SHARE})

    def bind(self, observation: Observation, generator: torch.Generator) -> Bound:
        own = own_contribution(observation)
        if own is None:
            return self.labels.bind(observation, generator)
        left = replace(observation, update=_left(observation, own), own=replace(own, share=0.0))
        return self.labels.bind(left, generator)


@dataclass(frozen=True)
class FixOwnLabels:
    """Labels of the others, found in what is left of the message, followed by the adversary's own."""

    labels: Labels

    uses: ClassVar[frozenset[Fact]] = frozenset({Fact.OWN, Fact.OWN_SHARE})

    def bind(self, observation: Observation, generator: torch.Generator) -> Bound:
        own = own_contribution(observation)
        if own is None:
            return self.labels.bind(observation, generator)
        inner = self.labels.bind(without_own_update(observation), generator)
        classes = observation.knows.classes

        def decode(tensors: list[Tensor]) -> Tensor:
            others = inner.decode(tensors)
            mine = own.labels.to(others.device)
            if others.is_floating_point():
                mine = torch.nn.functional.one_hot(mine, classes).to(others)
            return torch.cat([others, mine])

        return Bound(inner.unknowns, decode, notes=inner.notes)  # type: ignore[arg-type]  # a list is a sequence


def own_contribution(observation: Observation) -> Own | None:
    """The adversary's own contribution, where it is in the message with a share that is known."""
    return observation.own if Fact.OWN_SHARE in observation.facts else None


def without_own_update(observation: Observation) -> Observation:
    """The message as it would be without the adversary's own update; itself where that can not be told apart."""
    own = own_contribution(observation)
    if own is None:
        return observation
    check_own_examples(observation)
    # Its images stay known, and may stand in for others; in the message there is nothing of its own any more.
    alone = replace(own, share=0.0)
    return replace(observation, update=_left(observation, own), knows=_of_others(observation.knows, own), own=alone)


def _left(observation: Observation, own: Own) -> Update:
    """The message without the adversary's own update: (u - s u_own) / (1 - s)."""
    share = own.share or 0.0
    return {name: (u - share * own.update[name]) / (1 - share) for name, u in observation.update.items()}


def _of_others(knows: Knowledge, own: Own) -> Knowledge:
    """What is known of the others: the adversary's own size and labels come last, and are taken off."""
    count, sizes = len(own.labels), knows.sizes
    return replace(
        knows,
        examples=knows.examples - count,
        clients=max(1, knows.clients - 1),
        sizes=None if sizes is None else sizes[:-1],
        labels=None if knows.labels is None else _without(knows.labels, own.labels),
        batch_labels=None,
    )


def _without(told: Tensor, own: Tensor) -> Tensor:
    """The labels that are told, less the adversary's own; the others keep their order."""
    left = told.tolist()
    for label in reversed(own.tolist()):
        if label not in left:
            raise UsageError(
                f"The adversary's own label {label} is not among the true labels that it is told: its own examples "
                "must be a part of those behind the message."
            )
        # From the end: that is where the adversary's own are.
        del left[len(left) - 1 - left[::-1].index(label)]
    return torch.tensor(left, dtype=told.dtype, device=told.device)


def append_own_images(found: Reconstruction, own: Own) -> Reconstruction:
    """What was found of the others, then the adversary's own, so that all examples are there to be judged."""
    mine = own.images.to(found.images)
    raw = None if found.raw is None else torch.cat([found.raw, mine])
    labels = torch.cat([found.labels, own.labels.to(found.labels)])
    film = None if found.film is None else found.film.beside(mine)
    return replace(found, images=torch.cat([found.images, mine]), labels=labels, raw=raw, film=film)


def check_not_echo(observation: Observation) -> None:
    """Refuse a message that is what the adversary sent itself, as Krum returns it to the client that it chose."""
    own = observation.own
    if own is None or not all(name in own.update for name in observation.update):
        return
    pairs = [(u.double(), own.update[name].to(u).double()) for name, u in observation.update.items()]
    length = sum(float(mine.square().sum()) for _, mine in pairs) ** 0.5
    apart = sum(float((seen - mine).square().sum()) for seen, mine in pairs) ** 0.5
    if length > 0 and apart <= ECHO * length:
        raise UsageError(
            "The message is the adversary's own update, sent back by the rule: there is nothing of others in it to "
            "read, which says nothing about other rounds; choose another client or round."
        )


def check_own_examples(observation: Observation) -> None:
    """Refuse a contribution that can not be a part of the message."""
    own, knows = observation.own, observation.knows
    if own is None:
        return
    check_not_echo(observation)
    if tuple(own.images.shape[1:]) != knows.shape or len(own.images) != len(own.labels):
        raise UsageError(
            f"The adversary's own images have shape {tuple(own.images.shape)} for {len(own.labels)} labels, expected "
            f"one image of shape {knows.shape} for each: give the examples that it trained on."
        )
    if len(own.labels) and not 0 <= int(own.labels.min()) <= int(own.labels.max()) < knows.classes:
        raise UsageError(
            f"The adversary's own labels go from {int(own.labels.min())} to {int(own.labels.max())}, but the model "
            f"has the classes 0 to {knows.classes - 1}: correct the labels or the number of classes."
        )
    if not len(own.labels) < knows.examples:
        raise UsageError(
            f"The adversary has {len(own.labels)} examples of its own, but only {knows.examples} stand behind the "
            "message: nothing of others is left to look for; correct the number of examples."
        )
