"""A federation: clients, a server, and the rounds between them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor, nn

from fedglass.core.errors import DataError, UsageError
from fedglass.core.identity import digest, identity_text, of_model, of_tensor
from fedglass.core.losses import is_class_labels
from fedglass.core.rng import stream
from fedglass.core.tensors import Params, add, buffers_of, flatten, subtract, unflatten, weights_of
from fedglass.core.types import Observation, Training, Whitening
from fedglass.federation.behaviours import RejoinAfterRejection, check_data
from fedglass.federation.client import (
    Client,
    TrainClients,
    TrainRequest,
    local_batches,
    train_sequentially,
)
from fedglass.federation.transcript import Message, Participant, ParticipantsByRound, Round, Terms, Transcript
from fedglass.federation.truth import Examples, Truth, Truths
from fedglass.federation.views import Knows, View
from fedglass.fl.aggregate.rule import Aggregated, AggregationContext, Aggregator, State, WeightedMean
from fedglass.fl.loss.targets import check_targets, output_shape


@dataclass(eq=False)
class Server:
    """The global model and the memory of its aggregation rule; combines the messages of one round after another."""

    rule: Aggregator
    weights: Params
    buffers: Params
    seed: int
    state: State = field(init=False)
    previous: Tensor | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.state = self.rule.init(_row(self.weights, self.buffers))

    def combine(
        self,
        index: int,
        participants: Sequence[Participant],
        messages: Sequence[Message],
        reference: Message | None = None,
    ) -> Round:
        """Return the round that these messages make, and update the global model.

        Weights and running statistics go through the rule together, in one order of names, whatever order a release
        gave them. Counters have no mean: they are taken from the first accepted message. An update with an entry that
        is not finite never reaches the rule, since it would dominate a mean and most distances.
        """
        weights, buffers = self.weights, self.buffers
        rows = torch.stack([self._change(message) for message in messages])
        sound = rows.isfinite().all(dim=1)
        senders = [p for p, is_sound in zip(participants, sound.tolist(), strict=True) if is_sound]
        context = AggregationContext(
            torch.tensor([float(p.weight or p.examples) for p in senders]),
            index,
            tuple(p.known_as or p.name for p in senders),
            _row(weights, buffers),
            self.previous,
            stream(self.seed, "rule", index),
            None if reference is None else self._change(reference),
        )
        if senders:
            aggregated = self.rule.aggregate(rows if bool(sound.all()) else rows[sound], context, self.state)
        else:
            aggregated = Aggregated(torch.zeros_like(rows[0]), torch.zeros(0, dtype=torch.bool), self.state)
        self.state, self.previous = aggregated.state, aggregated.step
        statistics = _floating(buffers)
        tensors = unflatten(aggregated.step, {**weights, **statistics})
        # The vector has the widest type of its tensors.
        step, drift = ({name: tensors[name].to(t) for name, t in part.items()} for part in (weights, statistics))
        names = {p.name for p, passed in zip(senders, aggregated.accepted.tolist(), strict=True) if passed}
        accepted = [message for message in messages if message.client in names]
        counters = (accepted or list(messages))[0].buffers
        self.weights = add(weights, step)
        self.buffers = {name: b + drift[name] if name in drift else counters[name] for name, b in buffers.items()}
        kept = tuple(message.client for message in accepted)
        return Round(weights, buffers, tuple(participants), tuple(messages), step, self.buffers, kept)

    def _change(self, message: Message) -> Tensor:
        """Return the change of the model that a message asks for.  # (d,)"""
        update = {name: message.update[name] for name in self.weights}
        return _row(update, subtract(_floating(message.buffers), _floating(self.buffers)))


def _floating(buffers: Params) -> dict[str, Tensor]:
    """Return the buffers that can be averaged: running statistics, not counters."""
    return {name: tensor for name, tensor in buffers.items() if tensor.is_floating_point()}


def _row(weights: Params, buffers: Params) -> Tensor:
    """Return weights and running statistics as one vector.  # (d,)"""
    return flatten({**weights, **_floating(buffers)})


ROLES = "gradient", "release", "behaviour", "training"
"""Fields of a client that decide what it does with its examples."""


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
    server: Client | None = None
    """The server's own examples. It trains on them as a client would, for rules that compare with its update."""

    def __post_init__(self) -> None:
        if not self.clients:
            raise UsageError("A federation needs at least one client.")
        if not 0 < self.participation <= 1:
            raise UsageError(f"federation.participation must be in (0, 1], got {self.participation}.")
        names = [client.name for client in self.clients]
        if len(set(names)) != len(names):
            raise UsageError(f"Clients need different names, got {names}.")
        for client in self.clients if self.server is None else (*self.clients, self.server):
            self._check(client)
        check = getattr(self.aggregator, "check", None)
        if check is not None:
            check(self._count, self.server is not None)

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
        loss = (client.training or self.training).loss
        if loss is not None or not is_class_labels(client.labels):
            outputs = (self.classes,) if loss is None else output_shape(self.model, self.shape)
            check_targets(f"Client {client.name!r}", loss, client.labels, outputs)
            return
        outside = client.labels[(client.labels < 0) | (client.labels >= self.classes)]
        if len(outside):
            raise DataError(
                f"Client {client.name!r} has label {int(outside[0])}, expected 0 to {self.classes - 1}: "
                "correct the label or raise the number of classes."
            )
        check_data(client.behaviour, self.shape, self.classes)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Return the shape of one example."""
        channels, height, width = self.clients[0].images.shape[1:]
        return channels, height, width

    @property
    def terms(self) -> Terms:
        """Return the facts that everyone in the federation knows."""
        names = tuple(client.name for client in self.clients)
        described = ((client.name, client.behaviour.describe()) for client in self.clients)
        dishonest = tuple(f"{name[0].upper()}{name[1:]} {text}." for name, text in described if text)
        rule = repr(self.aggregator)
        return Terms(self.shape, self.classes, self.whitening, names, rule, behaviours=dishonest)

    @cached_property
    def identity(self) -> str:
        """Return a hash of everything that determines the messages of any round."""
        clients = [
            text
            for c in (self.clients if self.server is None else (*self.clients, self.server))
            for text in (
                c.name,
                of_tensor(c.images),
                of_tensor(c.labels),
                *(identity_text(getattr(c, role), f"The {role} of {c.name}") for role in ROLES),
            )
        ]
        facts = self.training, self.classes, self.whitening, self.participation, self.seed
        rule = identity_text(self.aggregator, "The aggregation rule")
        return digest(of_model(self.model), identity_text(facts, "The federation"), rule, *clients)

    @property
    def _count(self) -> int:
        """Return the number of clients that take part in a round."""
        return max(1, round(self.participation * len(self.clients)))

    def play(
        self,
        rounds: int = 1,
        progress: Callable[[int, int], None] | None = None,
        train_clients: TrainClients = train_sequentially,
    ) -> Iterator[Round]:
        """Yield one round after another, without storing them.

        A client's message depends on seed, name, round and model alone, so that it does not matter where it trains.
        """
        if rounds < 1:
            raise UsageError(f"federation.rounds must be at least 1, got {rounds}.")
        server = Server(self.aggregator, weights_of(self.model), buffers_of(self.model), self.seed)
        # Clients that rejoin, with the rejections in a row under their present name, and their names at the server.
        allowed = {c.name: c.behaviour.after for c in self.clients if isinstance(c.behaviour, RejoinAfterRejection)}
        rejected, renamed = dict.fromkeys(allowed, 0), dict[str, str]()
        taken = {client.name for client in self.clients}
        newcomers = (f"newcomer {i}" for i in itertools.count(1) if f"newcomer {i}" not in taken)
        for index in range(rounds):
            round_ = self._round(server, index, renamed, train_clients)
            for name in (p.name for p in round_.participants if p.name in allowed):
                rejected[name] = 0 if name in round_.accepted else rejected[name] + 1
                if rejected[name] >= allowed[name]:
                    renamed[name], rejected[name] = next(newcomers), 0
            yield round_
            if progress is not None:
                progress(index + 1, rounds)

    def repeat_round(self, index: int, round_: Round, train_clients: TrainClients = train_sequentially) -> Round:
        """Play a round again from the model that another federation had in it, with a rule that remembers nothing."""
        renamed = {p.name: p.known_as for p in round_.participants}
        server = Server(self.aggregator, round_.before, round_.buffers, self.seed)
        return self._round(server, index, renamed, train_clients)

    def _round(self, server: Server, index: int, renamed: Mapping[str, str], train_clients: TrainClients) -> Round:
        request = TrainRequest(
            self.model, server.weights, server.buffers, self.training, self.whitening, self.seed, index
        )
        clients = self.clients_in_round(index)
        messages = train_clients(clients, request)
        reference = None if self.server is None else train_clients([self.server], request)[0]
        participants = [replace(self.participant(c), known_as=renamed.get(c.name, "")) for c in clients]
        return server.combine(index, participants, messages, reference)

    def run(
        self,
        rounds: int = 1,
        progress: Callable[[int, int], None] | None = None,
        keep: Collection[int] | None = None,
        train_clients: TrainClients = train_sequentially,
    ) -> Transcript:
        """Train for some rounds and return the transcript of all of them, or of those in `keep`."""
        played = enumerate(self.play(rounds, progress, train_clients))
        return Transcript(self.model, self.terms, {i: round_ for i, round_ in played if keep is None or i in keep})

    def truths(self, rounds: Iterable[int] = (0,)) -> Truths:
        """Return the private examples of these rounds."""
        order = {}
        for index in rounds:
            for client in self.clients_in_round(index):
                batches = local_batches(client, client.training or self.training, self.seed, index)
                rows = torch.arange(len(client.labels))
                order[index, client.name] = tuple(tuple(rows[batch.rows].tolist()) for batch in batches)
        return Truths.of_batches({c.name: Examples(c.images, c.labels) for c in self.clients}, order)

    def participant(self, client: Client) -> Participant:
        """Return a client as everyone in the federation knows it."""
        training, examples = client.training or self.training, len(client.labels)
        taken = training.taken(examples)
        return Participant(client.name, taken, training, weight=None if taken == examples else examples)

    def participants_by_round(self, rounds: int) -> ParticipantsByRound:
        """Return the participants of each round, which are known before anything runs."""
        names = {index: tuple(client.name for client in self.clients_in_round(index)) for index in range(rounds)}
        return ParticipantsByRound(self.terms.clients, names)

    def clients_in_round(self, index: int) -> list[Client]:
        """Return the clients that take part in that round, counted from 0."""
        if self._count == len(self.clients):
            return list(self.clients)
        chosen = torch.randperm(len(self.clients), generator=stream(self.seed, "participation", index))[: self._count]
        return [self.clients[i] for i in sorted(chosen.tolist())]


def observe(federation: Federation, view: View, knows: Knows) -> tuple[Observation, Truth]:
    """Play the rounds that a view needs; return what the adversary observes and the truth behind it."""
    rounds = view.rounds()
    view.check(federation.participants_by_round(max(rounds) + 1))
    transcript, truths = federation.run(max(rounds) + 1, keep=rounds), federation.truths(rounds)
    viewed = view.see(transcript, knows, truths)
    return viewed.observation, truths.truth_of(viewed.clients, max(rounds), viewed.own_client)
