"""What an audit attacks: messages, each with all that belongs to it, from whatever yields them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from torch.nn.modules.batchnorm import _BatchNorm

from fedglass.audit.protection import together
from fedglass.audit.public import Public
from fedglass.checks.consistency import Statement
from fedglass.checks.replay import Declared
from fedglass.core.errors import UsageError
from fedglass.core.facts import Fact
from fedglass.core.identity import identity_text
from fedglass.core.tensors import Params, moved_others
from fedglass.core.types import BatchNorm, Observation
from fedglass.federation.client import TrainClients, train_sequentially
from fedglass.federation.peer import PeerView
from fedglass.federation.transcript import Participant, ParticipantsByRound, Round, Transcript
from fedglass.federation.truth import Examples, Truth, Truths
from fedglass.federation.views import HasLabel, Knows, Together, View, ViewResult
from fedglass.fl.release import Protection

Said = Callable[[int, int], None]
"""Hears how many rounds are done, and of how many."""


Present = Callable[[int], Sequence[Participant]]
"""Who takes part in a round."""


@dataclass(frozen=True, eq=False)
class Target:
    """One message with all that belongs to it; `truth` is None where nobody recorded it."""

    observation: Observation
    truth: Truth | None
    class_names: tuple[str, ...] | None = None
    utility: Mapping[str, float] = field(default_factory=dict)
    """How good the model is that the federation trained."""
    defences: tuple[str, ...] | None = None
    """What protects the message, and what that promises; None where it is not known."""
    simulated: bool = False
    """Whether the message was made by the declared training itself, in this audit."""
    declared: Declared | None = None
    """What is said to have made a recorded message, to be played again."""
    statement: Statement | None = None
    """The same without the data, to be checked for contradictions."""
    protections: tuple[Protection, ...] = ()
    """What is said to protect each of the clients of `statement`; empty where nobody says."""
    unnamed: bool = False
    """Whether something protects a client of which nobody has said what."""
    dishonest: bool = False
    """Whether a client behind the message does not do what is declared, such as a poisoner."""
    doubts: tuple[str, ...] = ()
    """What was recorded of the message and is not as it was said, found by looking at the message alone."""
    behind: tuple[str, ...] = ()
    """The anonymity set: the clients whose examples are in the message, the adversary's own left out."""
    participants: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    """Whose updates got through the aggregation rule in that round."""
    behaviours: tuple[str, ...] = ()
    """What poisoners do, in words."""
    public: Public | None = None
    """What the adversary has of such data beside the message."""
    swept: Mapping[str, float] = field(default_factory=dict)
    """What a sweep changes from one federation to the next, and its value here."""
    batch_statistics: bool = False
    """Whether a client behind the message trained BatchNorm layers with the statistics of its batches."""
    further: int = 0
    """Rounds beyond those that are looked at here in which one behind the message trained on the same examples."""
    also: tuple[Target, ...] = ()
    """Of messages that are attacked together with this one: what is declared of each must explain each."""
    overlooked: tuple[str, ...] = ()
    """Clients of the same federation that nobody has looked at, and nobody has left out."""
    reserved: tuple[str, ...] = ()
    """What a recorder saw of the training that can not be played again, in words."""
    others: Mapping[str, Params] = field(default_factory=dict)
    """Other messages that the same adversary sees, in which the same noise would show."""
    pool: Examples | None = None
    """Examples of the same kind that were not trained on: candidates, and what gradients have in common."""
    beside: tuple[str, ...] = ()
    """What a client sent beside the arrays of the model, by name."""

    @property
    def unread(self) -> tuple[str, ...]:
        """What left with the message and no attack looks at: a network may put anything into buffers of its own."""
        own = *moved_others(self.observation.buffers, self.observation.buffers_after), *self.beside
        return tuple(dict.fromkeys((*own, *(name for each in self.also for name in each.unread))))

    @property
    def miscounted(self) -> bool:
        """Whether the adversary was told another number of examples than there are: it looks for something else."""
        seen = self.observation
        told = self.truth is not None and not self.simulated and Fact.EXAMPLES in seen.facts
        own = told and seen.knows.examples != len(self.known_truth.labels)
        return own or any(each.miscounted for each in self.also)

    def without(self, *, pool: bool, others: bool) -> Target:
        """Return the target without what a probe has no use for: it travels to every worker."""
        return replace(self, pool=None if pool else self.pool, others={} if others else self.others)

    def target(self) -> Target:
        """Itself: it need not be made."""
        return self

    @property
    def known_truth(self) -> Truth:
        """The truth, for a probe that measures nothing without it."""
        if self.truth is None:
            raise UsageError("The true examples behind the message are needed here, and nobody has kept them.")
        return self.truth


class Pending(Protocol):
    """A target that the worker makes for itself: training its clients is then spread over the workers too."""

    def target(self) -> Target: ...


@dataclass(frozen=True)
class Unseen:
    """In place of a target that can not be had after all, such as an aggregate that a rule let nobody into."""

    why: str

    def target(self) -> Target:
        """The case fails for this reason, and no other case with it."""
        raise UsageError(self.why)


@dataclass(frozen=True)
class TargetInfo:
    """What is known of a target before the federation has run."""

    spec: str
    """The view as printed, from which a case's seed is drawn."""
    identity: str
    """The view as it is told from all others: a part of a case's key."""
    words: str
    round: int
    """Counted from 1, as in `words`."""
    name: str = ""
    """The view in short; empty where it has no short name."""
    standpoint: str = ""


@dataclass(frozen=True)
class Section:
    """A heading of the threat model and its sentences."""

    title: str
    lines: Sequence[str]


class Source(Protocol):
    """Something that yields targets."""

    @property
    def name(self) -> str: ...

    @property
    def knows(self) -> Knows: ...

    @property
    def shape(self) -> tuple[int, int, int]:
        """Of one image."""
        ...

    def identity(self) -> str:
        """A hash of everything that decides the messages."""
        ...

    def infos(self) -> Sequence[TargetInfo]: ...

    def threat(self) -> list[Section]:
        """The source in plain words."""
        ...

    def rehearse(self) -> Iterable[ViewResult]:
        """Refuse what could only fail after the training; then what will be seen, but for its entries."""
        ...

    def targets(self, progress: Said, answers: TrainClients = train_sequentially) -> Sequence[Target | Pending]:
        """The targets, in the order of `infos`; clients that are simulated for them train as `answers` has them."""
        ...


def infos_of(name: str, views: Iterable[View], clients: Sequence[str], present: Present) -> list[TargetInfo]:
    """What is known of the views' targets; a view that can not be written down is refused."""
    before, found = f"{name}: " if name else "", []
    for view in views:
        identity = identity_text(view, "The adversary's view")
        short = view.label() if isinstance(view, HasLabel) else None
        named = ("", "") if short is None else (before + short.name, short.standpoint)
        words = before + view.describe() + (_crowd(view, clients, present) if isinstance(view, PeerView) else "")
        found.append(TargetInfo(repr(view), identity, words, view.rounds()[-1] + 1, *named))
    return found


def _crowd(view: PeerView, clients: Sequence[str], present: Present) -> str:
    """Who else could have seen as much as a peer does, and how many examples of others are in what it sees."""
    people = present(view.round)
    others = [p.examples for p in people if p.name != clients[view.client]]
    counted = (f"{sum(others)} example{'' if sum(others) == 1 else 's'}", f"other{'' if len(others) == 1 else 's'}")
    return (
        f"; any of the {len(people)} participants could do so, and {counted[0]} of {len(others)} {counted[1]} are "
        "behind the message"
    )


def further(view: View, behind: Sequence[str], attendance: ParticipantsByRound, views: Sequence[View] = ()) -> int:
    """How many rounds more there are with any of these clients, whose examples stay the same.

    Those that one of `views` attacks together with this one are looked at there. One of the clients is enough:
    aggregates of a and b, of b and c and of a and c tell of a alone, and noise averages out whoever is beside it.
    """
    looked_at = [view, *(other for other in views if isinstance(other, Together) and view in other.views)]
    known = {index for each in looked_at for index in each.rounds()}
    rounds = (present for index, present in attendance.rounds.items() if index not in known)
    return sum(not set(behind).isdisjoint(present) for present in rounds)


def target_of(transcript: Transcript, view: View, knows: Knows, truths: Truths | None) -> Target:
    """What one view makes of a transcript, simulated or recorded."""
    seen, past = view.see(transcript, knows, truths), transcript.rounds[view.rounds()[-1]]
    terms = transcript.terms
    protected = None if terms.defences is None else {name: terms.defences.get(name, ()) for name in seen.clients}
    return Target(
        seen.observation,
        None if truths is None else truths.truth_of(seen.clients, view.rounds()[-1], seen.own_client),
        terms.class_names,
        defences=None if protected is None else tuple(together(protected)),
        behind=seen.clients,
        participants=tuple(p.name for p in past.participants),
        kept=past.accepted,
        behaviours=(*terms.behaviours, *_come_back(past, view.rounds()[-1])),
        batch_statistics=_batch_statistics(seen, [p for p in past.participants if p.name in seen.clients]),
    )


def _come_back(past: Round, index: int) -> list[str]:
    """Who was known to the server under a new name in that round, in words."""
    return [
        f"Round {index + 1}: the server knew {p.name} as {p.known_as!r}, under which it had come back after rejections."
        for p in past.participants
        if p.known_as
    ]


def _batch_statistics(seen: ViewResult, behind: Sequence[Participant]) -> bool:
    """Declared, or seen to have moved whatever was declared."""
    trainings = [p.training for p in behind if p.training is not None]
    used = any(training.batch_norm is BatchNorm.BATCH for training in trainings)
    normalises = any(isinstance(layer, _BatchNorm) for layer in seen.observation.model.modules())
    return (used and normalises) or Fact.STATISTICS in seen.observation.facts
