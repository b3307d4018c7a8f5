"""What was said in a federation, and nothing private: simulated and recorded federations give the same value."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from torch import Tensor, nn

from fedglass.core.errors import UsageError
from fedglass.core.identity import LATER
from fedglass.core.tensors import Params, Update, add
from fedglass.core.types import Observation, Training, Whitening
from fedglass.models.fixed import can_be_fixed, unmoved, with_fixed

MEAN_RULE = "WeightedMean()"
"""Identifier of the mean by numbers of examples in `Terms.rule`; saved transcripts contain it."""
UNKNOWN_RULE = "not recorded"
"""Identifier of a rule that was not recorded, in `Terms.rule`; saved transcripts contain it."""


@dataclass(frozen=True)
class Participant:
    """A client of a round as all others know it."""

    name: str
    examples: int
    """How many it trained on."""
    training: Training | None = None
    """As declared; None where it is not known."""
    lr: float | None = None
    steps: int | None = None
    """Learning rate and local steps, where they are known without the rest of the training."""
    weight: int | None = None
    """What it weighs in a mean, where that is not the number of examples that it trained on."""
    known_as: str = field(default="", metadata=LATER)
    """The name under which the server knows it, where it has come back under a new one."""
    counted: bool = field(default=True, metadata=LATER)
    """Whether `examples` is their number; if not, the least that it can be."""
    untrained: tuple[str, ...] = field(default=(), metadata=LATER)
    """The parameters that it does not train, as in fine-tuning, or never sends."""


@dataclass(frozen=True, eq=False)
class Start:
    """A model that a client was sent, to train on from there."""

    before: Params
    buffers: Params


@dataclass(frozen=True, eq=False)
class Message:
    """What one client sent in one round."""

    client: str
    update: Update
    buffers: Params
    """The client's running statistics after its training; empty where they were not recorded."""
    own: Start | None = None
    """What this client alone was sent, as in a personalised federation; None where it began with the round's model."""


@dataclass(frozen=True, eq=False)
class Round:
    """One round as it happened."""

    before: Params
    buffers: Params
    participants: tuple[Participant, ...]
    messages: tuple[Message, ...]
    """One from each participant; none where nothing but the aggregate was seen."""
    step: Params
    """What the aggregation rule made of the updates."""
    buffers_after: Params
    """Empty where they were not recorded."""
    kept: tuple[str, ...]
    """Whose updates got through the rule."""

    @property
    def after(self) -> Params:
        """The global model of the next round."""
        return add(self.before, self.step)

    def message(self, client: str) -> Message | None:
        """What that client sent, where it was seen."""
        return next((message for message in self.messages if message.client == client), None)

    def sent_their_own(self, clients: Collection[str]) -> tuple[str, ...]:
        """Who of these was sent another model than the rest: no one model explains what theirs is combined to."""
        return tuple(message.client for message in self.messages if message.own and message.client in clients)


@dataclass(frozen=True)
class Attendance:
    """Who takes part when: all that a view needs in order to say, before anything has run, that it can not be had."""

    clients: tuple[str, ...]
    rounds: Mapping[int, tuple[str, ...]]
    """The participants of each round that there is to look at."""

    def present(self, index: int) -> tuple[str, ...]:
        """The participants of a round, or what to do where there is no such round."""
        if index not in self.rounds:
            known = sorted(self.rounds)
            told = f"0 to {known[-1]}" if known == list(range(len(known))) else ", ".join(map(str, known))
            raise UsageError(
                f"adversary.round must be one of {told}, got {index}: choose another round or raise federation.rounds."
            )
        return self.rounds[index]

    def participant(self, position: int, index: int) -> str:
        """The client at a position, or that there is none, or that it took no part in that round."""
        present = self.present(index)
        if not 0 <= position < len(self.clients):
            raise UsageError(
                f"adversary.client must be one of 0 to {len(self.clients) - 1}, got {position}: choose another client "
                "or raise federation.clients."
            )
        name = self.clients[position]
        if name not in present:
            raise UsageError(
                f"Client {position} ({name}) did not take part in round {index}: choose another client or round, or "
                "raise federation.participation."
            )
        return name


@dataclass(frozen=True)
class Terms:
    """What everybody in a federation knows."""

    shape: tuple[int, int, int]
    classes: int
    whitening: Whitening
    clients: tuple[str, ...]
    rule: str
    """The aggregation rule as it prints."""
    class_names: tuple[str, ...] | None = None
    defences: Mapping[str, tuple[str, ...]] | None = None
    """What protects each client's messages and what that promises, in words; None where nobody has said."""
    behaviours: tuple[str, ...] = ()
    """What those participants do that are not honest, in words."""


@dataclass(frozen=True, eq=False)
class Transcript:
    """The rounds of a federation that somebody looks at, by their number."""

    model: nn.Module
    """The architecture; its own weights mean nothing."""
    terms: Terms
    rounds: Mapping[int, Round]
    origin: str = field(default="")
    """A hash of everything that decided the messages, where they were simulated."""

    @property
    def attendance(self) -> Attendance:
        present = {i: tuple(p.name for p in past.participants) for i, past in self.rounds.items()}
        return Attendance(self.terms.clients, present)

    def save(self, directory: str | Path) -> None:
        """Write safetensors and one JSON manifest; nothing private is in them."""
        from fedglass.recordings.saved import save_transcript

        save_transcript(self, Path(directory))

    @classmethod
    def load(cls, directory: str | Path, model: nn.Module) -> Transcript:
        """What `save` wrote; `model` is the architecture."""
        from fedglass.recordings.saved import load_transcript

        return load_transcript(Path(directory), model)


# Layers that clients do not train, as in fine-tuning: a message tells nothing by not moving them.


def still(before: Params, update: Update, mean: bool = False) -> tuple[str, ...]:
    """The parameters that a message did not move; none where it moved nothing at all, which says something else.

    A mean over clients rounds. A client's own difference does not: however small, it tells of the data.
    """
    found = tuple(
        name
        for name, tensor in before.items()
        if (unmoved(tensor, update[name]) if mean else not bool(update[name].any()))
    )
    return found if len(found) < len(before) else ()


def with_still(past: Round, unprotected: Collection[str]) -> Round:
    """The round with what did not move taken as not trained, of these clients.

    Of others it is not: a defence may have cut it out of the message.
    """

    def told(person: Participant) -> Participant:
        if person.name not in unprotected:
            return person
        message = past.message(person.name)
        start = past if message is None or message.own is None else message.own
        found = still(start.before, past.step, mean=True) if message is None else still(start.before, message.update)
        return replace(person, untrained=tuple(dict.fromkeys((*person.untrained, *found))))

    return replace(past, participants=tuple(map(told, past.participants)))


def untrained_by_all(people: Sequence[Participant]) -> tuple[str, ...]:
    """What none of them trains."""
    first, *others = people
    return tuple(name for name in first.untrained if all(name in other.untrained for other in others))


def without_untrained(observation: Observation, names: Collection[str]) -> Observation:
    """The same seen as an update of the other parameters: these are constants of the network.

    But for what has moved in it: an aggregate may hold what none of its messages did, as far as anybody saw them.
    """
    before, update = observation.before, observation.update
    fixed = [name for name in can_be_fixed(observation.model) if name in names and unmoved(before[name], update[name])]
    if not fixed:
        return observation
    values = {name: before[name] for name in fixed}
    own = observation.own
    return replace(
        observation,
        model=with_fixed(observation.model, fixed),
        before=_without(before, fixed),
        update=_without(update, fixed),
        buffers={**observation.buffers, **values},
        own=None if own is None else replace(own, update=_without(own.update, fixed)),
    )


def _without(params: Params, names: Collection[str]) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in params.items() if name not in names}
