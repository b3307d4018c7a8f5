"""A participant's use of its own contribution to the message: it knows its images, its labels and its update.

The adversary's own examples come last among those behind a message, and last in the truth that the audit compares with.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor

from fedglass.attack.best_of import AnyAttack, GuessedRun, Guesses
from fedglass.attack.forward.target import like
from fedglass.attack.parts import Bound, Images, Labels
from fedglass.core.errors import UsageError
from fedglass.core.facts import Fact
from fedglass.core.losses import is_class_labels
from fedglass.core.tensors import Update
from fedglass.core.types import Knowledge, Observation, Own, Reconstruction

ECHO = 1e-4
"""Share of an update: a message that differs by less is that update, carried in single precision."""


def _others_only(attack: AnyAttack, observation: Observation, others: Observation) -> list[GuessedRun]:
    """Return the one guess: the attack seeks the others' examples alone, and the adversary's own images are appended.

    A message that contains nothing of the adversary's own, for which `others` is the observation, is left as it is.
    """
    contribution = observation.own
    if contribution is None or others is observation:
        return [GuessedRun(attack, observation)]
    known_images = observation.knows.examples - others.knows.examples
    return [GuessedRun(attack, others, partial(append_own_images, contribution=contribution), known_images)]


@dataclass(frozen=True)
class SubtractOwnUpdate(Guesses[AnyAttack]):
    """The message without the adversary's own update: (u - s u_own) / (1 - s).

    Exact where the message is a mean in which its own update has the share s: fewer images are sought, and of two
    clients the other one's update is bare. Where the share is not known, or the message contains nothing of its own,
    the message is attacked as it is.
    """

    uses: ClassVar[frozenset[Fact]] = frozenset({Fact.OWN, Fact.OWN_SHARE})

    def options(self, attack: AnyAttack, observation: Observation) -> list[GuessedRun]:
        return _others_only(attack, observation, without_own_update(observation))


@dataclass(frozen=True)
class KeepOwnUpdate(Guesses[AnyAttack]):
    """The message as it is, with the adversary's own update as one of those that went into the rule.

    For rules other than the mean, from which an update cannot be subtracted, and for a client that sent poison: no
    images are sought for its own update. The attack's operator takes it from the observation, see `Through`.
    """

    uses: ClassVar[frozenset[Fact]] = frozenset({Fact.OWN, Fact.OWN_SHARE})

    def options(self, attack: AnyAttack, observation: Observation) -> list[GuessedRun]:
        return _others_only(attack, observation, self.others(observation))

    def others(self, observation: Observation) -> Observation:
        """Return the observation in which the others' examples are sought; itself where nothing is taken off."""
        contribution = observation.own
        if contribution is None or Fact.OWN not in observation.facts:
            return observation
        check_own_examples(observation)
        return replace(observation, knows=_of_others(observation.knows, contribution))


@dataclass(frozen=True)
class FixOwnImages:
    """Images of the others as unknowns, followed by the adversary's own, which are fixed."""

    images: Images

    uses: ClassVar[frozenset[Fact]] = frozenset({Fact.OWN})

    def bind(self, observation: Observation, generator: torch.Generator, start: Tensor | None) -> Bound:
        contribution = observation.own
        if contribution is None or Fact.OWN not in observation.facts:
            return self.images.bind(observation, generator, start)
        check_own_examples(observation)
        n = observation.knows.examples - len(contribution.labels)
        fixed = observation.knows.whitening.whiten(contribution.images.to(like(observation)))[None]
        without_own = replace(observation, knows=replace(observation.knows, examples=n))
        inner = self.images.bind(without_own, generator, None if start is None else start[:, :n])

        def append(images: Tensor) -> Tensor:
            return torch.cat([images, fixed.expand(len(images), *fixed.shape[1:])], dim=1)

        return Bound(
            inner.unknowns,
            lambda tensors: append(inner.decode(tensors)),
            lambda images: append(inner.nearest(images[:, :n])),
        )


@dataclass(frozen=True)
class LabelsOfOthers:
    """Labels of the others alone, recovered from the message without the adversary's update if its share is known."""

    labels: Labels

    uses: ClassVar[frozenset[Fact]] = frozenset({Fact.OWN, Fact.OWN_SHARE})

    def bind(self, observation: Observation, generator: torch.Generator) -> Bound:
        contribution = own_contribution(observation)
        if contribution is None:
            return self.labels.bind(observation, generator)
        update = _others_update(observation, contribution)
        return self.labels.bind(replace(observation, update=update, own=replace(contribution, share=0.0)), generator)


@dataclass(frozen=True)
class FixOwnLabels:
    """Labels of the others, recovered from the message without the adversary's update, followed by its own."""

    labels: Labels

    uses: ClassVar[frozenset[Fact]] = frozenset({Fact.OWN, Fact.OWN_SHARE})

    def bind(self, observation: Observation, generator: torch.Generator) -> Bound:
        contribution = own_contribution(observation)
        if contribution is None:
            return self.labels.bind(observation, generator)
        inner = self.labels.bind(without_own_update(observation), generator)
        classes = observation.knows.classes

        def decode(tensors: Sequence[Tensor]) -> Tensor:
            labels = inner.decode(tensors)
            own_labels = contribution.labels.to(labels.device)
            if labels.is_floating_point() and is_class_labels(own_labels):
                own_labels = torch.nn.functional.one_hot(own_labels, classes).to(labels)
            return torch.cat([labels, own_labels])

        return Bound(inner.unknowns, decode, notes=inner.notes)


def own_contribution(observation: Observation) -> Own | None:
    """Return the adversary's own contribution, where it is in the message with a known share."""
    return observation.own if Fact.OWN_SHARE in observation.facts else None


def without_own_update(observation: Observation) -> Observation:
    """Return the message without the adversary's own update; itself where the two cannot be separated."""
    contribution = own_contribution(observation)
    if contribution is None:
        return observation
    check_own_examples(observation)
    return replace(
        observation,
        update=_others_update(observation, contribution),
        knows=_of_others(observation.knows, contribution),
        # Its images stay known, and may replace those of others; the message contains nothing of its own any more.
        own=replace(contribution, share=0.0),
    )


def _others_update(observation: Observation, contribution: Own) -> Update:
    """Subtract the adversary's own update from the message: (u - s u_own) / (1 - s)."""
    share = contribution.share or 0.0
    return {name: (u - share * contribution.update[name]) / (1 - share) for name, u in observation.update.items()}


def _of_others(knows: Knowledge, contribution: Own) -> Knowledge:
    """Remove the adversary's own size and labels, which come last, from the knowledge."""
    count, sizes = len(contribution.labels), knows.sizes
    return replace(
        knows,
        examples=knows.examples - count,
        clients=max(1, knows.clients - 1),
        sizes=None if sizes is None else sizes[:-1],
        labels=None if knows.labels is None else _remove_labels(knows.labels, contribution.labels),
        batch_labels=None,
    )


def _remove_labels(true_labels: Tensor, own_labels: Tensor) -> Tensor:
    """Remove the adversary's own labels from the true ones; the others keep their order."""
    labels = true_labels.tolist()
    for label in reversed(own_labels.tolist()):
        if label not in labels:
            raise UsageError(
                f"The adversary's own label {label} is not among the true labels that it is told: its own examples "
                "must be among those behind the message."
            )
        # From the end: that is where the adversary's own are.
        del labels[len(labels) - 1 - labels[::-1].index(label)]
    return torch.tensor(labels, dtype=true_labels.dtype, device=true_labels.device)


def append_own_images(run: Reconstruction, contribution: Own) -> Reconstruction:
    """Append the adversary's own images to those of the others, so that the audit can score all examples."""
    own_images = contribution.images.to(run.images)
    return replace(
        run,
        images=torch.cat([run.images, own_images]),
        labels=torch.cat([run.labels, contribution.labels.to(run.labels)]),
        raw=None if run.raw is None else torch.cat([run.raw, own_images]),
        film=None if run.film is None else run.film.beside(own_images),
    )


def check_not_echo(observation: Observation) -> None:
    """Refuse a message that is the adversary's own update, as Krum returns it to the client that it selected."""
    contribution = observation.own
    if contribution is None or not all(name in contribution.update for name in observation.update):
        return
    pairs = [(u.cpu().double(), contribution.update[n].to(u).cpu().double()) for n, u in observation.update.items()]
    length = sum(float(sent.square().sum()) for _, sent in pairs) ** 0.5
    distance = sum(float((received - sent).square().sum()) for received, sent in pairs) ** 0.5
    if length > 0 and distance <= ECHO * length:
        raise UsageError(
            "The message is the adversary's own update, sent back by the rule: it contains nothing of other clients. "
            "This says nothing about other rounds; choose another client or round."
        )


def check_own_examples(observation: Observation) -> None:
    """Refuse a contribution that cannot be a part of the message."""
    contribution, knows = observation.own, observation.knows
    if contribution is None:
        return
    images, labels = contribution.images, contribution.labels
    check_not_echo(observation)
    if tuple(images.shape[1:]) != knows.shape or len(images) != len(labels):
        raise UsageError(
            f"The adversary's own images have shape {tuple(images.shape)} for {len(labels)} labels, expected "
            f"one image of shape {knows.shape} for each: give the examples that it trained on."
        )
    if len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < knows.classes:
        raise UsageError(
            f"The adversary's own labels go from {int(labels.min())} to {int(labels.max())}, but the model "
            f"has the classes 0 to {knows.classes - 1}: correct the labels or the number of classes."
        )
    if not len(labels) < knows.examples:
        raise UsageError(
            f"The adversary has {len(labels)} examples of its own, but only {knows.examples} stand behind the "
            "message: no examples of other clients are left; correct the number of examples."
        )
