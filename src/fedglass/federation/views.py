"""Who sees what: a view turns a transcript into what the adversary is given."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor

from fedglass.core.errors import UsageError
from fedglass.core.facts import Fact
from fedglass.core.identity import LATER
from fedglass.core.tensors import Params, Update
from fedglass.core.types import Knowledge, Observation, Own
from fedglass.federation.transcript import (
    Attendance,
    Participant,
    Round,
    Start,
    Transcript,
    untrained_by_all,
    without_untrained,
)
from fedglass.federation.truth import Truth, Truths

T = TypeVar("T")
Standpoint = Literal["server", "aggregate", "peer"]
"""Where an adversary stands: at the server, at the server behind secure aggregation, among the clients."""


@dataclass(frozen=True)
class Knows:
    """Which optional facts the adversary is given, each a named assumption of the report."""

    training: bool = True
    """Learning rate, epochs and batch size of the clients."""
    steps: bool = False
    """The number of local steps and the learning rate, where epochs and batch size are not known."""
    labels: bool = False
    """ORACLE: the true labels, in no particular order."""
    batch_labels: bool = False
    """ORACLE: the true labels of each local batch."""
    lr: bool = field(default=True, metadata=LATER)
    """The clients' learning rate, where their training or the number of steps is known."""
    examples: bool = field(default=True, metadata=LATER)
    """How many examples stand behind the message, and of how many clients."""
    kept: bool = field(default=True, metadata=LATER)
    """Whose updates got through the server's rule; a peer that does not know knows who took part."""

    def grants(self, fact: Fact) -> bool:
        """Whether an oracle's fact is among what is given; an eye is whose it is that chooses by it."""
        given = {Fact.LABELS: self.labels, Fact.BATCH_LABELS: self.batch_labels, Fact.EYE: True}
        return self.labels and self.examples if fact is Fact.GROUPS else given.get(fact, False)


@dataclass(frozen=True, eq=False)
class Seen:
    """What the adversary is given, and whose data are in it."""

    observation: Observation
    behind: tuple[str, ...]
    """The anonymity set: the others whose examples are in the message, among whom a picture can not be attributed."""
    own: str | None = None
    """The adversary itself, where it is a participant whose examples are in the message too."""


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
    """A place to look from. A frozen dataclass: its repr is a part of a case's identity."""

    def rounds(self) -> tuple[int, ...]:
        """The rounds that must be kept for it, by their numbers in the transcript."""
        ...

    def check(self, attendance: Attendance) -> None:
        """Refuse, before anything has run, what can not be seen in such a federation."""
        ...

    def see(self, transcript: Transcript, knows: Knows, truths: Truths | None) -> Seen:
        """What the adversary is given. Of the truths it takes its own examples, and what oracles tell."""
        ...

    def describe(self, naming: Naming = COUNTED) -> str:
        """Describe the view in plain words; of a recorded federation, with its own names and numbers."""
        ...


@dataclass(frozen=True)
class Brief:
    """A view in a table or a chart, where `describe` would be too long."""

    standpoint: Standpoint
    name: str


@runtime_checkable
class Named(Protocol):
    """A view that has a short name; one that has none is called by its description."""

    def brief(self, naming: Naming = COUNTED) -> Brief: ...


@dataclass(frozen=True, eq=False)
class Look:
    """What all views have in common: a message of some participants, in one round."""

    transcript: Transcript
    round: int
    behind: tuple[Participant, ...]
    """Whose examples are in the message, the adversary's own last."""
    update: Update
    buffers_after: Params = field(default_factory=dict)
    """The running statistics that came with it; empty where they were not seen."""
    present: bool = False
    """Whether they are only known to have taken part: not all of them need be in the message."""
    start: Start | None = None
    """What the message adds to, where that is not the round's own model."""

    def observation(self, knows: Knows, truths: Truths | None, own: Own | None = None) -> Observation:
        past = self.transcript.rounds[self.round]
        at = Start(past.before, past.buffers) if self.start is None else self.start
        facts = self.knowledge(knows, truths, own)
        whole = Observation(self.transcript.model, at.before, at.buffers, self.update, facts, own, self.buffers_after)
        return without_untrained(whole, untrained_by_all(self.behind))

    def knowledge(self, knows: Knows, truths: Truths | None = None, own: Own | None = None) -> Knowledge:
        """What the adversary knows beside the message."""
        terms, sizes = self.transcript.terms, tuple(p.examples for p in self.behind)
        training = _common([p.training for p in self.behind])
        long = knows.training or knows.steps
        rates = [p.lr if p.training is None else p.training.lr for p in self.behind]
        counted = knows.examples and all(p.counted for p in self.behind)
        told = counted and not self.present
        # Who has not been told how many there are knows of its own, and that there are others.
        least = 1 + (0 if own is None else len(own.labels))
        return Knowledge(
            shape=terms.shape,
            classes=terms.classes,
            examples=sum(sizes) if told else min(least, sum(sizes)),
            whitening=terms.whitening,
            training=training if knows.training and knows.lr else None,
            steps=_steps(self.behind) if long else None,
            lr=_common(rates) if long and knows.lr else None,
            clients=len(sizes) if told else 1,
            sizes=sizes if told else None,
            labels=self._labels(truths) if knows.labels and truths is not None else None,
            batch_labels=self._batch_labels(truths) if knows.batch_labels and truths is not None else None,
            counted=told,
            present=sizes if counted and self.present else None,
        )

    def _labels(self, truths: Truths) -> Tensor:
        """Each client's in no particular order."""
        return torch.cat([truths.of(p.name, self.round).labels.sort().values for p in self.behind])

    def _batch_labels(self, truths: Truths) -> tuple[tuple[int, ...], ...] | None:
        """Of one client alone: in an aggregate they belong to no batch."""
        return truths.batch_labels.get((self.round, self.behind[0].name)) if len(self.behind) == 1 else None


def check_one_start(past: Round, index: int, clients: Sequence[str]) -> None:
    """Refuse what is combined of updates to different models: it is an update to none of them."""
    others = past.sent_their_own(clients)
    if others:
        raise UsageError(
            f"{others[0]!r} was sent a model of its own in round {index}, so that the round's aggregate adds to no one "
            'model: set adversary.view = "server", or choose another round.'
        )


def _common(values: Sequence[T | None]) -> T | None:
    """What all of them are; None where they differ."""
    return values[0] if all(value == values[0] for value in values) else None


def _steps(clients: Sequence[Participant]) -> int | None:
    """T; for clients of unequal size the nearest whole to their mean, in which each weighs as in the aggregate."""
    counts = [p.steps if p.training is None else p.training.local_steps(p.examples) for p in clients]
    known = [p.examples * count for p, count in zip(clients, counts, strict=True) if count is not None]
    return round(sum(known) / sum(p.examples for p in clients)) if len(known) == len(clients) else None


# The server that sees every client's update.


@dataclass(frozen=True)
class ServerView:
    """The server, which sees the update of one client (by its position among the clients)."""

    client: int = 0
    round: int = 0

    def rounds(self) -> tuple[int, ...]:
        return (self.round,)

    def check(self, attendance: Attendance) -> None:
        attendance.participant(self.client, self.round)

    def see(self, transcript: Transcript, knows: Knows, truths: Truths | None) -> Seen:
        self.check(transcript.attendance)
        past, name = transcript.rounds[self.round], transcript.terms.clients[self.client]
        message = past.message(name)
        if message is None:
            raise UsageError(
                f"Round {self.round} was recorded as an aggregate only, without the update of client {self.client} "
                f'({name}): set adversary.view = "aggregate" or "peer".'
            )
        behind = tuple(p for p in past.participants if p.name == name)
        look = Look(transcript, self.round, behind, message.update, message.buffers, start=message.own)
        return Seen(look.observation(knows, truths), (name,))

    def describe(self, naming: Naming = COUNTED) -> str:
        return f"the server sees the update of {naming.client(self.client)} in round {naming.round(self.round)}"

    def brief(self, naming: Naming = COUNTED) -> Brief:
        return Brief("server", f"server, {naming.client(self.client)}")


# A server behind secure aggregation.


@dataclass(frozen=True)
class AggregateView:
    """Sees only the aggregate of all clients of a round, behind which are those that the rule let through."""

    round: int = 0

    def rounds(self) -> tuple[int, ...]:
        return (self.round,)

    def check(self, attendance: Attendance) -> None:
        attendance.present(self.round)

    def see(self, transcript: Transcript, knows: Knows, truths: Truths | None) -> Seen:
        self.check(transcript.attendance)
        past = transcript.rounds[self.round]
        behind = tuple(p for p in past.participants if p.name in past.kept)
        if not behind:
            raise UsageError(f"No update of round {self.round} got through the rule: choose another round.")
        check_one_start(past, self.round, past.kept)
        look = Look(transcript, self.round, behind, past.step, past.buffers_after)
        return Seen(look.observation(knows, truths), tuple(p.name for p in behind))

    def describe(self, naming: Naming = COUNTED) -> str:
        return f"the server sees only the clients' aggregate of round {naming.round(self.round)} (secure aggregation)"

    def brief(self, naming: Naming = COUNTED) -> Brief:
        return Brief("aggregate", "aggregate")


# Several rounds of the same client, or of the same clients, looked at together.


@dataclass(frozen=True)
class Together:
    """Views of different rounds whose messages come from the same examples.

    What one message leaves open another may tell, and noise that is drawn anew in each round averages out. The
    earliest round is the one that stands for all where one must: its network has learned least.
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
        """The earliest first."""
        return tuple(sorted(self.views, key=lambda view: view.rounds()[-1]))

    def rounds(self) -> tuple[int, ...]:
        """The earliest last, as the one that stands for all."""
        return tuple(sorted((index for view in self.views for index in view.rounds()), reverse=True))

    def check(self, attendance: Attendance) -> None:
        for view in self.views:
            view.check(attendance)

    def see(self, transcript: Transcript, knows: Knows, truths: Truths | None) -> Seen:
        earliest, *later = self.ordered
        first, *rest = (view.see(transcript, knows, truths) for view in (earliest, *later))
        for view, seen in zip(later, rest, strict=True):
            _check_same(first, seen, earliest, view, truths)
        return replace(first, observation=replace(first.observation, also=tuple(s.observation for s in rest)))

    def describe(self, naming: Naming = COUNTED) -> str:
        numbers = ", ".join(str(naming.round(index)) for index in reversed(self.rounds()))
        return f"{self.ordered[0].describe(naming)}, and the same of rounds {numbers} together"

    def brief(self, naming: Naming = COUNTED) -> Brief:
        first = self.ordered[0]
        short = first.brief(naming) if isinstance(first, Named) else Brief("server", first.describe(naming))
        return Brief(short.standpoint, f"{short.name}, {len(self.views)} rounds together")


def _check_same(first: Seen, other: Seen, earliest: View, later: View, truths: Truths | None) -> None:
    """Refuse rounds behind which are other people or, as far as anybody knows, other examples."""
    if first.own is not None or first.observation.own is not None:
        raise UsageError(
            'Rounds can not be attacked together by a peer: set adversary.view = "server" or "aggregate", or leave '
            "adversary.together out."
        )
    same = first.behind == other.behind and first.observation.knows.sizes == other.observation.knows.sizes
    if same and truths is not None:
        one, two = (truths.behind(s.behind, v.rounds()[-1]) for s, v in ((first, earliest), (other, later)))
        same = _equal(one, two)
    if not same:
        raise UsageError(
            f"Rounds {earliest.rounds()[-1]} and {later.rounds()[-1]} can not be attacked together: other clients or "
            "other examples are behind them. Choose rounds in which the same client trained on the same data."
        )


def _equal(one: Truth, two: Truth) -> bool:
    if one.images.shape != two.images.shape:
        return False
    return bool(torch.equal(one.images, two.images)) and bool(torch.equal(one.labels, two.labels))
