"""Who sees what: a view splits a transcript into what the adversary is given and what it must not see."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

from fedglass.core.errors import UsageError
from fedglass.core.params import Params
from fedglass.core.types import Knowledge, Observation, Training
from fedglass.rounds.client import Message
from fedglass.rounds.federation import Federation, Round, Transcript
from fedglass.rounds.truth import Truth


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


class View(Protocol):
    """Transcript -> what the adversary sees, and the truth behind it."""

    def see(self, transcript: Transcript, knows: Knows) -> tuple[Observation, Truth]: ...

    def describe(self) -> str:
        """The view in plain words."""
        ...


@dataclass(frozen=True)
class ServerView:
    """The server, which sees the update of one client (by its position among the clients)."""

    client: int = 0
    round: int = 0

    def see(self, transcript: Transcript, knows: Knows) -> tuple[Observation, Truth]:
        federation, past = transcript.federation, _round(transcript, self.round)
        if not 0 <= self.client < len(federation.clients):
            raise UsageError(f"adversary.client must be one of 0 to {len(federation.clients) - 1}, got {self.client}.")
        name = federation.clients[self.client].name
        message = next((m for m in past.messages if m.client.name == name), None)
        if message is None:
            raise UsageError(
                f"Client {self.client} ({name}) did not take part in round {self.round}: choose another client "
                "or round, or raise federation.participation."
            )
        return _split(federation, past, (message,), message.update, knows)

    def describe(self) -> str:
        return f"the server sees the update of client {self.client} in round {self.round + 1}"


@dataclass(frozen=True)
class AggregateView:
    """A server behind secure aggregation, which sees only the aggregate of all clients of a round."""

    round: int = 0

    def see(self, transcript: Transcript, knows: Knows) -> tuple[Observation, Truth]:
        past = _round(transcript, self.round)
        return _split(transcript.federation, past, past.messages, past.step, knows)

    def describe(self) -> str:
        return f"the server sees only the clients' aggregate of round {self.round + 1} (secure aggregation)"


def _round(transcript: Transcript, index: int) -> Round:
    if not 0 <= index < len(transcript.rounds):
        raise UsageError(
            f"adversary.round must be one of 0 to {len(transcript.rounds) - 1}, got {index}: the federation ran "
            f"{len(transcript.rounds)} rounds."
        )
    return transcript.rounds[index]


def _split(
    federation: Federation, past: Round, messages: tuple[Message, ...], update: Params, knows: Knows
) -> tuple[Observation, Truth]:
    images = torch.cat([m.client.images for m in messages])
    labels = torch.cat([m.client.labels for m in messages])
    channels, height, width = images.shape[1:]
    steps = _steps(federation.training, messages) if knows.training or knows.steps else None
    knowledge = Knowledge(
        shape=(channels, height, width),
        classes=federation.classes,
        examples=len(images),
        whitening=federation.whitening,
        training=federation.training if knows.training else None,
        steps=steps,
        lr=federation.training.lr if knows.training or knows.steps else None,
        clients=len(messages),
        labels=torch.cat([m.client.labels.sort().values for m in messages]) if knows.labels else None,
        batch_labels=messages[0].batch_labels if knows.batch_labels and len(messages) == 1 else None,
    )
    seen = Observation(federation.model, past.before, past.buffers, update, knowledge)
    return seen, Truth(images, labels, tuple(m.client.name for m in messages))


def _steps(training: Training, messages: tuple[Message, ...]) -> int:
    """T; for clients of unequal size the nearest whole to their mean, in which each weighs as in the aggregate."""
    sizes = [len(m.client.labels) for m in messages]
    return round(sum(n * training.local_steps(n) for n in sizes) / sum(sizes))
