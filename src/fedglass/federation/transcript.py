"""Transcripts: all messages of a federation and nothing private, the same for simulated and recorded federations."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from torch import nn

from fedglass.core.errors import UsageError
from fedglass.core.identity import LATER
from fedglass.core.losses import Loss
from fedglass.core.tensors import Params, Update, add
from fedglass.core.types import Observation, Training, Whitening
from fedglass.models.names import can_be_fixed, hold_fixed, unmoved

MEAN_RULE = "WeightedMean()"
"""Identifier of the mean by numbers of examples in `Terms.rule`; saved transcripts contain it."""
UNKNOWN_RULE = "not recorded"
"""Identifier of a rule that was not recorded, in `Terms.rule`; saved transcripts contain it."""


@dataclass(frozen=True)
class Participant:
    """A client of a round, as everyone in the federation knows it."""

    name: str
    examples: int
    """The number of examples that it trained on."""
    training: Training | None = None
    """The declared training; None if it is unknown."""
    lr: float | None = None
    steps: int | None = None
    """Learning rate and local steps, if they are known without the rest of the training."""
    weight: int | None = None
    """Its weight in a mean, if that is not the number of examples that it trained on."""
    known_as: str = field(default="", metadata=LATER)
    """The name under which the server knows it, if it has rejoined under a new one."""
    counted: bool = field(default=True, metadata=LATER)
    """Whether `examples` is exact; if not, it is a lower bound."""
    untrained: tuple[str, ...] = field(default=(), metadata=LATER)
    """The parameters that it does not train, as in fine-tuning, or never sends."""
    loss: Loss | None = field(default=None, metadata=LATER)
    """Its loss, if that is known without the rest of the training and is not the mean cross entropy."""


@dataclass(frozen=True, eq=False)
class SentModel:
    """A model that a client was sent as the start of its training."""

    before: Params
    buffers: Params


@dataclass(frozen=True, eq=False)
class Message:
    """The message of one client in one round."""

    client: str
    update: Update
    buffers: Params
    """The client's running statistics after its training; empty if they were not recorded."""
    start: SentModel | None = None
    """The model that only this client was sent, as in a personalised federation; None if it got the round's model."""


@dataclass(frozen=True, eq=False)
class Round:
    """The models, participants and messages of one round."""

    before: Params
    buffers: Params
    participants: tuple[Participant, ...]
    messages: tuple[Message, ...]
    """One message of each participant; none if only the aggregate is known."""
    step: Params
    """The aggregate that the rule computed from the updates."""
    buffers_after: Params
    """Empty if they were not recorded."""
    accepted: tuple[str, ...]
    """The clients with updates that the rule accepted."""

    @property
    def after(self) -> Params:
        """Return the global model of the next round."""
        return add(self.before, self.step)

    def message(self, client: str) -> Message | None:
        """Return the message of that client; None if it is unknown."""
        return next((message for message in self.messages if message.client == client), None)

    def clients_with_own_model(self, clients: Collection[str]) -> tuple[str, ...]:
        """Return those of the clients that were sent a model of their own; their aggregate has no common start."""
        return tuple(message.client for message in self.messages if message.start and message.client in clients)


@dataclass(frozen=True)
class ParticipantsByRound:
    """The participants of each round: all that a view needs to refuse a federation before anything runs."""

    clients: tuple[str, ...]
    rounds: Mapping[int, tuple[str, ...]]
    """Names by round; only rounds that can be observed."""

    def in_round(self, index: int) -> tuple[str, ...]:
        """Return the participants of a round; raise an error if there is no such round."""
        if index not in self.rounds:
            rounds = sorted(self.rounds)
            choices = f"0 to {rounds[-1]}" if rounds == list(range(len(rounds))) else ", ".join(map(str, rounds))
            raise UsageError(
                f"adversary.round must be one of {choices}, got {index}: choose another round or raise "
                "federation.rounds."
            )
        return self.rounds[index]

    def name_at(self, position: int, index: int) -> str:
        """Return the client at a position; raise an error if there is none or if it did not take part in that round."""
        participants = self.in_round(index)
        if not 0 <= position < len(self.clients):
            raise UsageError(
                f"adversary.client must be one of 0 to {len(self.clients) - 1}, got {position}: choose another client "
                "or raise federation.clients."
            )
        name = self.clients[position]
        if name not in participants:
            raise UsageError(
                f"Client {position} ({name}) did not take part in round {index}: choose another client or round, or "
                "raise federation.participation."
            )
        return name


@dataclass(frozen=True)
class Terms:
    """Facts that everyone in a federation knows."""

    shape: tuple[int, int, int]
    classes: int
    whitening: Whitening
    clients: tuple[str, ...]
    rule: str
    """Identifier of the aggregation rule: `MEAN_RULE`, `UNKNOWN_RULE`, or the rule as it prints."""
    class_names: tuple[str, ...] | None = None
    defences: Mapping[str, tuple[str, ...]] | None = None
    """Sentences on each client's defences and their guarantees; None if they are unknown."""
    behaviours: tuple[str, ...] = ()
    """Sentences on the participants that are not honest."""


@dataclass(frozen=True, eq=False)
class Transcript:
    """The observed rounds of a federation, by number."""

    model: nn.Module
    """The architecture; its weights have no meaning."""
    terms: Terms
    rounds: Mapping[int, Round]
    origin: str = field(default="")
    """A hash of everything that determined the messages, if they were simulated."""

    @property
    def participants_by_round(self) -> ParticipantsByRound:
        names = {i: tuple(p.name for p in round_.participants) for i, round_ in self.rounds.items()}
        return ParticipantsByRound(self.terms.clients, names)

    def save(self, directory: str | Path) -> None:
        """Write safetensors and one JSON manifest; nothing private is in them."""
        from fedglass.recordings.saved_transcripts import save_transcript

        save_transcript(self, Path(directory))

    @classmethod
    def load(cls, directory: str | Path, model: nn.Module) -> Transcript:
        """Read a transcript that `save` wrote; `model` is the architecture."""
        from fedglass.recordings.saved_transcripts import load_transcript

        return load_transcript(Path(directory), model)


def unmoved_parameters(before: Params, update: Update, mean: bool = False) -> tuple[str, ...]:
    """Return the parameters that a message did not move; none if it moved nothing at all, which has another cause.

    With `mean` a movement within rounding does not count, since a mean over clients rounds. One client's difference
    does not round: however small, it depends on the data.
    """
    names = tuple(
        name
        for name, tensor in before.items()
        if (unmoved(tensor, update[name]) if mean else not bool(update[name].any()))
    )
    return names if len(names) < len(before) else ()


def mark_untrained(round_: Round, unprotected: Collection[str]) -> Round:
    """Return the round with unmoved parameters of these clients marked as untrained, as in fine-tuning.

    Other clients stay as they are: a defence may have removed the movement from their messages.
    """

    def marked(participant: Participant) -> Participant:
        if participant.name not in unprotected:
            return participant
        message = round_.message(participant.name)
        start = round_ if message is None or message.start is None else message.start
        update = round_.step if message is None else message.update
        unmoved_names = unmoved_parameters(start.before, update, mean=message is None)
        return replace(participant, untrained=tuple(dict.fromkeys((*participant.untrained, *unmoved_names))))

    return replace(round_, participants=tuple(map(marked, round_.participants)))


def shared_untrained(participants: Sequence[Participant]) -> tuple[str, ...]:
    """Return the parameters that none of the participants trains."""
    first, *later = participants
    return tuple(name for name in first.untrained if all(name in other.untrained for other in later))


def without_untrained(observation: Observation, names: Collection[str]) -> Observation:
    """Return the observation as an update of the trained parameters; the untrained ones become network constants.

    Parameters that have moved stay in the update: an aggregate may contain messages that were not observed.
    """
    before, update = observation.before, observation.update
    fixed = [name for name in can_be_fixed(observation.model) if name in names and unmoved(before[name], update[name])]
    return hold_fixed(observation, fixed) if fixed else observation
