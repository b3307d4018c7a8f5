"""Views: what an adversary at the server, behind secure aggregation, or in several rounds observes of a transcript.

`PeerView`, the view of a participant, is in `fedglass.federation.peer`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol, TypeVar

import torch
from torch import Tensor

from fedglass.core.errors import UsageError
from fedglass.core.facts import Fact
from fedglass.core.identity import LATER
from fedglass.core.losses import Loss, is_class_labels
from fedglass.core.tensors import Params, Update
from fedglass.core.text import some
from fedglass.core.types import MOST_PIXELS, Knowledge, Observation, Own
from fedglass.federation.transcript import (
    Participant,
    ParticipantsByRound,
    Round,
    SentModel,
    Transcript,
    shared_untrained,
    without_untrained,
)
from fedglass.federation.truth import Truths
from fedglass.fl.loss.losses import UnknownLoss

T = TypeVar("T")
Standpoint = Literal["server", "aggregate", "peer", "malicious_server"]
"""The adversary's place: at the server, behind secure aggregation, among the clients, or where models are crafted."""


@dataclass(frozen=True)
class Knows:
    """The optional facts that the adversary is given, each a named assumption of the report."""

    training: bool = True
    """The clients' learning rate, epochs and batch size."""
    steps: bool = False
    """The number of local steps and the learning rate, if epochs and batch size are unknown."""
    labels: bool = False
    """ORACLE: the true labels, in no particular order."""
    batch_labels: bool = False
    """ORACLE: the true labels of each local batch."""
    lr: bool = field(default=True, metadata=LATER)
    """The clients' learning rate, if their training or the number of steps is known."""
    examples: bool = field(default=True, metadata=LATER)
    """The numbers of examples and clients behind the message."""
    kept: bool = field(default=True, metadata=LATER)
    """The clients that the server's rule accepted; without this fact a peer knows the participants only."""

    def grants(self, fact: Fact) -> bool:
        """Return whether the adversary is given an oracle's fact; an eye belongs to everyone who chooses with it."""
        oracles = {Fact.LABELS: self.labels, Fact.BATCH_LABELS: self.batch_labels, Fact.EYE: True}
        return self.labels and self.examples if fact is Fact.GROUPS else oracles.get(fact, False)


@dataclass(frozen=True, eq=False)
class ViewResult:
    """The observation that an adversary gets, and the clients with examples in it."""

    observation: Observation
    clients: tuple[str, ...]
    """The anonymity set: the other clients in the message. A picture cannot be attributed to one of them."""
    own_client: str | None = None
    """The adversary itself, if it is a participant with examples in the message too."""


@dataclass(frozen=True)
class Naming:
    """Names of clients and rounds in sentences.

    A simulation counts: its first client is "client 0", and its round 0 is shown as round 1. A recorded federation has
    names and numbers of its own, which stay as they are.

    >>> Naming().client(1), Naming().round(0), Naming(("site-1", "site-2")).client(1), Naming(("site-1",)).round(0)
    ('client 1', 1, 'site-2', 0)
    """

    clients: tuple[str, ...] | None = None
    """The names of a recorded federation's clients, by position; None in a simulation."""

    def client(self, position: int) -> str:
        return f"client {position}" if self.clients is None else self.clients[position]

    def round(self, index: int) -> int:
        return index + 1 if self.clients is None else index


COUNTED = Naming()
"""The naming of a simulation."""


class View(Protocol):
    """An adversary's view. A frozen dataclass: the seed of a case is derived from its repr, which must not change."""

    def rounds(self) -> tuple[int, ...]:
        """The rounds that must be kept for it, by their numbers in the transcript."""
        ...

    def check(self, participants: ParticipantsByRound) -> None:
        """Raise an error, before anything runs, if such a federation does not have this view."""
        ...

    def see(self, transcript: Transcript, knows: Knows, truths: Truths | None) -> ViewResult:
        """Return what the adversary observes. From the truths it takes its own examples and the facts of oracles."""
        ...

    def describe(self, naming: Naming = COUNTED) -> str:
        """Describe the view in plain words; of a recorded federation, with its own names and numbers."""
        ...


ViewLabel = tuple[Standpoint, str]
"""A view's standpoint, and its short name for tables and charts, where `describe` would be too long."""


def label_of(view: View, *naming: Naming) -> ViewLabel | None:
    """Return the label of a view that has a method `label`; other views are called by their description."""
    label: Callable[..., ViewLabel] | None = getattr(view, "label", None)
    return None if label is None else label(*naming)


@dataclass(frozen=True, eq=False)
class ViewBuilder:
    """Builds the observation of a message of some participants in one round; all views use it."""

    transcript: Transcript
    round: int
    participants: tuple[Participant, ...]
    """The clients with examples in the message, the adversary itself last."""
    update: Update
    buffers_after: Params = field(default_factory=dict)
    """The running statistics that came with it; empty if they were not observed."""
    acceptance_unknown: bool = False
    """Whether the adversary does not know which of the participants are in the message."""
    start: SentModel | None = None
    """The model that the message adds to, if that is not the round's model."""

    def observation(self, knows: Knows, truths: Truths | None, own: Own | None = None) -> Observation:
        """Return the observation, without parameters that no participant trains."""
        start = self.start or self.transcript.rounds[self.round]
        observation = Observation(
            self.transcript.model,
            start.before,
            start.buffers,
            self.update,
            self.knowledge(knows, truths, own),
            own,
            self.buffers_after,
        )
        return without_untrained(observation, shared_untrained(self.participants))

    def knowledge(self, knows: Knows, truths: Truths | None = None, own: Own | None = None) -> Knowledge:
        """Return what the adversary knows in addition to the message."""
        terms, sizes = self.transcript.terms, tuple(p.examples for p in self.participants)
        training = _common([p.training for p in self.participants])
        long = knows.training or knows.steps
        rates = [p.lr if p.training is None else p.training.lr for p in self.participants]
        counted = knows.examples and all(p.counted for p in self.participants)
        exact = counted and not self.acceptance_unknown
        if counted:
            self._check_size()
        # If the count is unknown, the adversary knows its own examples and that there is at least one other.
        least = 1 + (0 if own is None else len(own.labels))
        labels = batch_labels = None
        if knows.labels and truths is not None:  # of each client, in no particular order
            labels = torch.cat([_sorted(truths.of(p.name, self.round).labels) for p in self.participants])
        if knows.batch_labels and truths is not None and len(sizes) == 1:  # in an aggregate they belong to no batch
            batch_labels = truths.batch_labels.get((self.round, self.participants[0].name))
        return Knowledge(
            shape=terms.shape,
            classes=terms.classes,
            examples=sum(sizes) if exact else min(least, sum(sizes)),
            whitening=terms.whitening,
            training=training if knows.training and knows.lr else None,
            steps=_steps(self.participants) if long else None,
            lr=_common(rates) if long and knows.lr else None,
            clients=len(sizes) if exact else 1,
            sizes=sizes if exact else None,
            labels=labels,
            batch_labels=batch_labels,
            counted=exact,
            present=sizes if counted and self.acceptance_unknown else None,
            loss=self._loss(),
        )

    def _check_size(self) -> None:
        """Refuse a message of so many images that no attack can hold them; their number may come from a file."""
        shape, examples = self.transcript.terms.shape, sum(p.examples for p in self.participants)
        if examples * math.prod(shape) > MOST_PIXELS:
            names = some([repr(p.name) for p in self.participants])
            raise UsageError(
                f"The message of {names} in round {self.round} comes from {examples:,} images of shape {shape}, "
                f"expected at most {MOST_PIXELS:,} pixels in all: correct the number of examples, or audit other "
                "clients or rounds."
            )

    def _loss(self) -> Loss | None:
        """Return the clients' loss if it is not the mean cross entropy; clients of different losses have none known."""
        losses = {p.loss if p.training is None else p.training.loss for p in self.participants}
        return losses.pop() if len(losses) == 1 else UnknownLoss()


def _sorted(targets: Tensor) -> Tensor:
    """Return classes or other targets in an order that does not depend on that of the examples."""
    if is_class_labels(targets):
        return targets.sort().values
    return targets[sorted(range(len(targets)), key=lambda i: targets[i].flatten().tolist())]


def check_common_model(round_: Round, index: int, clients: Sequence[str]) -> None:
    """Raise an error if an aggregate combines updates to different models: it is an update to none of them."""
    deviating = round_.clients_with_own_model(clients)
    if deviating:
        raise UsageError(
            f"{deviating[0]!r} was sent a model of its own in round {index}, so that the round's aggregate adds to no "
            'one model: set adversary.view = "server", or choose another round.'
        )


def _common(values: Sequence[T | None]) -> T | None:
    """Return the value that all have in common; None if they differ."""
    return values[0] if all(value == values[0] for value in values) else None


def _steps(clients: Sequence[Participant]) -> int | None:
    """Return the local steps T; for clients of unequal size their rounded mean, weighted as in the aggregate."""
    counts = [p.steps if p.training is None else p.training.local_steps(p.examples) for p in clients]
    weighted = [p.examples * count for p, count in zip(clients, counts, strict=True) if count is not None]
    return round(sum(weighted) / sum(p.examples for p in clients)) if len(weighted) == len(clients) else None


@dataclass(frozen=True)
class ServerView:
    """The server, which sees the update of one client (by its position among the clients)."""

    client: int = 0
    round: int = 0

    def rounds(self) -> tuple[int, ...]:
        return (self.round,)

    def check(self, participants: ParticipantsByRound) -> None:
        participants.name_at(self.client, self.round)

    def see(self, transcript: Transcript, knows: Knows, truths: Truths | None) -> ViewResult:
        self.check(transcript.participants_by_round)
        round_, name = transcript.rounds[self.round], transcript.terms.clients[self.client]
        message = round_.message(name)
        if message is None:
            raise UsageError(
                f"Round {self.round} was recorded as an aggregate only, without the update of client {self.client} "
                f'({name}): set adversary.view = "aggregate" or "peer".'
            )
        sender = tuple(p for p in round_.participants if p.name == name)
        builder = ViewBuilder(transcript, self.round, sender, message.update, message.buffers, start=message.start)
        return ViewResult(builder.observation(knows, truths), (name,))

    def describe(self, naming: Naming = COUNTED) -> str:
        return f"the server sees the update of {naming.client(self.client)} in round {naming.round(self.round)}"

    def label(self, naming: Naming = COUNTED) -> ViewLabel:
        return "server", f"server, {naming.client(self.client)}"


@dataclass(frozen=True)
class MaliciousServerView:
    """The server that sent a crafted model, and sees the update of one client to it."""

    client: int = 0
    round: int = 0

    def rounds(self) -> tuple[int, ...]:
        return (self.round,)

    def check(self, participants: ParticipantsByRound) -> None:
        self._server.check(participants)

    def see(self, transcript: Transcript, knows: Knows, truths: Truths | None) -> ViewResult:
        return self._server.see(transcript, knows, truths)

    def describe(self, naming: Naming = COUNTED) -> str:
        return f"the server sends a crafted model; {self._server.describe(naming)}"

    def label(self, naming: Naming = COUNTED) -> ViewLabel:
        return "malicious_server", f"malicious {self._server.label(naming)[1]}"

    @property
    def _server(self) -> ServerView:
        return ServerView(self.client, self.round)


# A server behind secure aggregation.


@dataclass(frozen=True)
class AggregateView:
    """The server behind secure aggregation, which sees only the aggregate of the clients that the rule accepted."""

    round: int = 0

    def rounds(self) -> tuple[int, ...]:
        return (self.round,)

    def check(self, participants: ParticipantsByRound) -> None:
        participants.in_round(self.round)

    def see(self, transcript: Transcript, knows: Knows, truths: Truths | None) -> ViewResult:
        self.check(transcript.participants_by_round)
        round_ = transcript.rounds[self.round]
        accepted = tuple(p for p in round_.participants if p.name in round_.accepted)
        if not accepted:
            raise UsageError(f"The rule rejected all updates of round {self.round}: choose another round.")
        check_common_model(round_, self.round, round_.accepted)
        builder = ViewBuilder(transcript, self.round, accepted, round_.step, round_.buffers_after)
        return ViewResult(builder.observation(knows, truths), tuple(p.name for p in accepted))

    def describe(self, naming: Naming = COUNTED) -> str:
        return f"the server sees only the clients' aggregate of round {naming.round(self.round)} (secure aggregation)"

    def label(self, naming: Naming = COUNTED) -> ViewLabel:
        return "aggregate", "aggregate"


# Several rounds of the same client, or of the same clients, looked at together.


@dataclass(frozen=True)
class Together:
    """Views of different rounds with messages made from the same examples, attacked together.

    One message may settle what another leaves open, and noise that is drawn in each round averages out. Where one
    round has to represent all, it is the earliest: its network has learned least.
    """

    views: tuple[View, ...]

    def __post_init__(self) -> None:
        rounds = [index for view in self.views for index in view.rounds()]
        if len(self.views) < 2 or len(set(rounds)) < len(rounds):
            raise UsageError(
                f"Rounds that are attacked together must be different ones, at least two, got {rounds}: give "
                "adversary.round a list of them, or leave adversary.together out."
            )

    @property
    def ordered(self) -> tuple[View, ...]:
        """Return the views, the earliest round first."""
        return tuple(sorted(self.views, key=lambda view: view.rounds()[-1]))

    def rounds(self) -> tuple[int, ...]:
        """Return the rounds, the earliest last: it represents all."""
        return tuple(sorted((index for view in self.views for index in view.rounds()), reverse=True))

    def check(self, participants: ParticipantsByRound) -> None:
        for view in self.views:
            view.check(participants)

    def see(self, transcript: Transcript, knows: Knows, truths: Truths | None) -> ViewResult:
        earliest, *later = self.ordered
        first, *others = (view.see(transcript, knows, truths) for view in (earliest, *later))
        for view, other in zip(later, others, strict=True):
            _check_same(first, other, earliest, view, truths)
        return replace(first, observation=replace(first.observation, also=tuple(o.observation for o in others)))

    def describe(self, naming: Naming = COUNTED) -> str:
        numbers = ", ".join(str(naming.round(index)) for index in reversed(self.rounds()))
        return f"{self.ordered[0].describe(naming)}, and the same of rounds {numbers} together"

    def label(self, naming: Naming = COUNTED) -> ViewLabel:
        first = self.ordered[0]
        standpoint, name = label_of(first, naming) or ("server", first.describe(naming))
        return standpoint, f"{name}, {len(self.views)} rounds together"


def _check_same(first: ViewResult, other: ViewResult, earliest: View, later: View, truths: Truths | None) -> None:
    """Raise an error if the rounds are of different clients or, as far as is known, of different examples."""
    if first.own_client is not None or first.observation.own is not None:
        raise UsageError(
            'Rounds cannot be attacked together by a peer: set adversary.view = "server" or "aggregate", or leave '
            "adversary.together out."
        )
    same = first.clients == other.clients and first.observation.knows.sizes == other.observation.knows.sizes
    if same and truths is not None:
        one, two = (truths.truth_of(s.clients, v.rounds()[-1]) for s, v in ((first, earliest), (other, later)))
        same = torch.equal(one.images, two.images) and torch.equal(one.labels, two.labels)
    if not same:
        raise UsageError(
            f"Rounds {earliest.rounds()[-1]} and {later.rounds()[-1]} cannot be attacked together: they have "
            "different clients or different examples. Choose rounds in which the same client trained on the same data."
        )
