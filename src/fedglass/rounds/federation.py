"""A federation: clients, a server, and the rounds between them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from fedglass.core.errors import DataError, UsageError
from fedglass.core.params import Params, add, buffers_of, flatten, unflatten, weights_of
from fedglass.core.rng import stream
from fedglass.core.types import Training, Whitening
from fedglass.fl.aggregate.mean import WeightedMean
from fedglass.fl.aggregate.rule import AggregationContext, Aggregator
from fedglass.rounds.client import Call, Client, Message, respond


@dataclass(frozen=True, eq=False)
class Round:
    """One round as it happened."""

    before: Params
    buffers: Params
    messages: tuple[Message, ...]
    """From the clients that took part."""
    step: Params
    """What the aggregation rule made of the updates."""

    @property
    def after(self) -> Params:
        return add(self.before, self.step)


@dataclass(frozen=True, eq=False)
class Transcript:
    """All that was said in a federation, with the private data behind it."""

    federation: Federation
    rounds: tuple[Round, ...]


@dataclass(frozen=True, eq=False)
class Federation:
    """Clients that train one model with a server.

    `participation` is the share of clients that each round calls, at least one.
    """

    model: nn.Module
    clients: Sequence[Client]
    training: Training
    classes: int
    whitening: Whitening
    aggregator: Aggregator = field(default_factory=WeightedMean)
    participation: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.clients:
            raise UsageError("A federation needs at least one client.")
        if not 0 < self.participation <= 1:
            raise UsageError(f"federation.participation must be in (0, 1], got {self.participation}.")
        names = [client.name for client in self.clients]
        if len(set(names)) != len(names):
            raise UsageError(f"Clients need different names, got {names}.")
        for client in self.clients:
            self._check(client)

    def _check(self, client: Client) -> None:
        shape = tuple(self.clients[0].images.shape[1:])
        if tuple(client.images.shape[1:]) != shape:
            raise DataError(
                f"Client {client.name!r} has images of shape {tuple(client.images.shape[1:])}, expected {shape} "
                "as the first client's: bring all to one shape."
            )
        if len(self.whitening.mean) not in (1, shape[0]):
            raise DataError(
                f"The whitening has {len(self.whitening.mean)} means, expected one for each of the {shape[0]} channels "
                f"of the images of client {client.name!r}: give as many means and deviations as channels."
            )
        outside = client.labels[(client.labels < 0) | (client.labels >= self.classes)]
        if len(outside):
            raise DataError(
                f"Client {client.name!r} has label {int(outside[0])}, expected 0 to {self.classes - 1}: "
                "correct the label or raise the number of classes."
            )

    def run(self, rounds: int = 1, progress: Callable[[int, int], None] | None = None) -> Transcript:
        """Train for some rounds and keep all that was said."""
        if rounds < 1:
            raise UsageError(f"federation.rounds must be at least 1, got {rounds}.")
        before: Params = weights_of(self.model)
        buffers: Params = buffers_of(self.model)
        past: list[Round] = []
        for index in range(rounds):
            messages = tuple(respond(client, self._call(before, buffers, index)) for client in self.called(index))
            past.append(Round(before, buffers, messages, self._aggregate(messages, index)))
            before, buffers = past[-1].after, _mean_buffers(messages)
            if progress is not None:
                progress(index + 1, rounds)
        return Transcript(self, tuple(past))

    def _call(self, before: Params, buffers: Params, index: int) -> Call:
        return Call(self.model, before, buffers, self.training, self.whitening, self.seed, index)

    def called(self, index: int) -> list[Client]:
        """The clients that take part in that round, counted from 0."""
        count = max(1, round(self.participation * len(self.clients)))
        if count == len(self.clients):
            return list(self.clients)
        chosen = torch.randperm(len(self.clients), generator=stream(self.seed, "participation", index))[:count]
        return [self.clients[i] for i in sorted(chosen.tolist())]

    def _aggregate(self, messages: Sequence[Message], index: int) -> Params:
        first = messages[0].update
        # In one order of names, whatever a release did to the order of its own.
        stacked = torch.stack([flatten({name: m.update[name] for name in first}) for m in messages])  # (n, d)
        context = AggregationContext(example_counts(messages), index)
        return unflatten(self.aggregator.aggregate(stacked, context), first)


def example_counts(messages: Sequence[Message]) -> Tensor:
    """How many examples stand behind each message.  # (n,)"""
    return torch.tensor([float(len(m.client.labels)) for m in messages])


def _mean_buffers(messages: Sequence[Message]) -> Params:
    """Running statistics averaged over the clients; counters are taken from the first."""
    weights = example_counts(messages)
    weights = weights / weights.sum()
    first = messages[0].buffers
    return {
        name: sum((w * m.buffers[name] for w, m in zip(weights, messages, strict=True)), torch.zeros_like(tensor))
        if tensor.is_floating_point()
        else tensor
        for name, tensor in first.items()
    }
