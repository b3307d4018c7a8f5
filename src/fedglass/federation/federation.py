"""A federation: clients, a server, and the rounds between them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor, nn

from fedglass.core.errors import DataError, UsageError
from fedglass.core.identity import digest, identity_text, of_model, of_tensor
from fedglass.core.rng import stream
from fedglass.core.tensors import Params, add, buffers_of, flatten, subtract, unflatten, weights_of
from fedglass.core.types import Observation, Training, Whitening
from fedglass.federation.behaviour.behaviour import Doorbook, Fitting
from fedglass.federation.client import Answers, Call, Client, local_batches, one_by_one, respond
from fedglass.federation.transcript import Attendance, Message, Participant, Round, Terms, Transcript
from fedglass.federation.truth import Examples, Truth, Truths
from fedglass.federation.views import Knows, View
from fedglass.fl.aggregate.rule import Aggregated, AggregationContext, Aggregator, Limited, State, WeightedMean
from fedglass.fl.local import Batch

# The server's side of a federation: the global model, and what its aggregation rule remembers.


@dataclass(eq=False)
class Server:
    """Combines the messages of one round after another."""

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
        """The round that these messages make; the global model moves on.

        Weights and running statistics go through the rule together, in one order of names, whatever a release did
        to the order of its own. Counters have no mean: they are taken from the first that got through. An update with
        an entry that is no finite number reaches no rule: one of them would be all of a mean, and of most distances.
        """
        weights, buffers = self.weights, self.buffers
        rows = torch.stack([self._sent(message) for message in messages])
        sound = rows.isfinite().all(dim=1)
        senders = [p for p, is_sound in zip(participants, sound.tolist(), strict=True) if is_sound]
        context = AggregationContext(
            torch.tensor([float(p.weight or p.examples) for p in senders]),
            index,
            tuple(p.known_as or p.name for p in senders),
            _row(weights, buffers),
            self.previous,
            stream(self.seed, "rule", index),
            None if reference is None else self._sent(reference),
        )
        found = self._aggregated(rows if bool(sound.all()) else rows[sound], context)
        self.state, self.previous = found.state, found.step
        step, drift = _split(found.step, weights, _floating(buffers))
        passed = {p.name for p, kept in zip(senders, found.accepted.tolist(), strict=True) if kept}
        through = [m for m in messages if m.client in passed]
        counters = (through or list(messages))[0].buffers
        self.weights = add(weights, step)
        self.buffers = {name: b + drift[name] if name in drift else counters[name] for name, b in buffers.items()}
        names = tuple(m.client for m in through)
        return Round(weights, buffers, tuple(participants), tuple(messages), step, self.buffers, names)

    def _sent(self, message: Message) -> Tensor:
        """What a message would have the model move by.  # (d,)"""
        update = {name: message.update[name] for name in self.weights}
        return _row(update, subtract(_floating(message.buffers), _floating(self.buffers)))

    def _aggregated(self, rows: Tensor, context: AggregationContext) -> Aggregated:
        if not len(rows):
            assert context.before is not None, "the server has a model"
            return Aggregated(torch.zeros_like(context.before), torch.zeros(0, dtype=torch.bool), self.state)
        return self.rule.aggregate(rows, context, self.state)


def _floating(buffers: Params) -> dict[str, Tensor]:
    """The buffers that can be averaged: running statistics, not counters."""
    return {name: tensor for name, tensor in buffers.items() if tensor.is_floating_point()}


def _row(weights: Params, buffers: Params) -> Tensor:
    """Weights and running statistics as one vector.  # (d,)"""
    return flatten({**weights, **_floating(buffers)})


def _split(row: Tensor, weights: Params, buffers: Params) -> tuple[Params, Params]:
    """The inverse of `_row`."""
    named = unflatten(row, {**weights, **buffers})
    # A row is of the widest of its types.
    step, drift = ({name: named[name].to(own) for name, own in part.items()} for part in (weights, buffers))
    return step, drift


ROLES = "gradient", "release", "behaviour", "training"
"""What a client does, beside having examples."""


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
    """Examples of the server's own, on which it trains as a client would, for rules that compare with its update."""

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
        if isinstance(self.aggregator, Limited):
            self.aggregator.check(self._count, self.server is not None)

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
        if isinstance(client.behaviour, Fitting):
            client.behaviour.check(self.shape, self.classes)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Of one example."""
        channels, height, width = self.clients[0].images.shape[1:]
        return channels, height, width

    @property
    def terms(self) -> Terms:
        """What everybody in the federation knows."""
        names = tuple(client.name for client in self.clients)
        rule = repr(self.aggregator)
        return Terms(self.shape, self.classes, self.whitening, names, rule, behaviours=self._behaviours())

    def _behaviours(self) -> tuple[str, ...]:
        """What those clients do that are not honest, in words."""
        told = {client.name: client.behaviour.describe() for client in self.clients}
        return tuple(f"{name[0].upper()}{name[1:]} {words}." for name, words in told.items() if words)

    @cached_property
    def identity(self) -> str:
        """A hash of everything that decides what is said in any round."""
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
        """How many clients take part in a round."""
        return max(1, round(self.participation * len(self.clients)))

    def play(
        self, rounds: int = 1, progress: Callable[[int, int], None] | None = None, answers: Answers = one_by_one
    ) -> Iterator[Round]:
        """One round after another; nothing is kept of those that are over.

        What a client says depends on seed, name, round and model alone, so that it does not matter where it trains.
        """
        if rounds < 1:
            raise UsageError(f"federation.rounds must be at least 1, got {rounds}.")
        server = Server(self.aggregator, weights_of(self.model), buffers_of(self.model), self.seed)
        book = Doorbook.of((client.name, client.behaviour) for client in self.clients)
        for index in range(rounds):
            past = self._round(server, index, book.known, answers)
            book = book.after((p.name for p in past.participants), past.kept)
            yield past
            if progress is not None:
                progress(index + 1, rounds)

    def again(self, index: int, past: Round, answers: Answers = one_by_one) -> Round:
        """One round from the model that another federation's had, by a rule that remembers nothing."""
        known = {p.name: p.known_as for p in past.participants}
        return self._round(Server(self.aggregator, past.before, past.buffers, self.seed), index, known, answers)

    def _round(self, server: Server, index: int, known: Mapping[str, str], answers: Answers) -> Round:
        call = Call(self.model, server.weights, server.buffers, self.training, self.whitening, self.seed, index)
        called = self.called(index)
        messages = answers(called, call)
        own = None if self.server is None else respond(self.server, call)
        people = [replace(self.participant(client), known_as=known.get(client.name, "")) for client in called]
        return server.combine(index, people, messages, own)

    def run(
        self,
        rounds: int = 1,
        progress: Callable[[int, int], None] | None = None,
        keep: Collection[int] | None = None,
        answers: Answers = one_by_one,
    ) -> Transcript:
        """Train for some rounds and keep what was said in all of them, or in those asked for."""
        played = enumerate(self.play(rounds, progress, answers))
        return Transcript(self.model, self.terms, {i: past for i, past in played if keep is None or i in keep})

    def truths(self, rounds: Iterable[int] = (0,)) -> Truths:
        """The private side of these rounds."""
        looked_at = [(index, client) for index in rounds for client in self.called(index)]
        batches = {(i, c.name): local_batches(c, c.training or self.training, self.seed, i) for i, c in looked_at}
        labels = {
            (i, c.name): tuple(tuple(c.labels[batch.rows].tolist()) for batch in batches[i, c.name])
            for i, c in looked_at
        }
        taken = {(i, c.name): rows for i, c in looked_at if (rows := _taken(batches[i, c.name], len(c.labels)))}
        order = {
            (i, c.name): tuple(tuple(torch.arange(len(c.labels))[batch.rows].tolist()) for batch in batches[i, c.name])
            for i, c in looked_at
        }
        return Truths({c.name: Examples(c.images, c.labels) for c in self.clients}, labels, taken, order)

    def participant(self, client: Client) -> Participant:
        """A client as all others know it."""
        training, examples = client.training or self.training, len(client.labels)
        taken = training.taken(examples)
        return Participant(client.name, taken, training, weight=None if taken == examples else examples)

    def attendance(self, rounds: int) -> Attendance:
        """Who takes part in which round, known before anything has run."""
        present = {index: tuple(client.name for client in self.called(index)) for index in range(rounds)}
        return Attendance(self.terms.clients, present)

    def called(self, index: int) -> list[Client]:
        """The clients that take part in that round, counted from 0."""
        if self._count == len(self.clients):
            return list(self.clients)
        chosen = torch.randperm(len(self.clients), generator=stream(self.seed, "participation", index))[: self._count]
        return [self.clients[i] for i in sorted(chosen.tolist())]


def _taken(batches: Sequence[Batch], examples: int) -> tuple[int, ...] | None:
    """The examples that a training takes, in file order; None where it takes all of them."""
    order = torch.arange(examples)
    rows = sorted({int(row) for batch in batches for row in order[batch.rows]})
    return None if len(rows) == examples else tuple(rows)


# A federation played and looked at in one line.


def observe(federation: Federation, view: View, knows: Knows) -> tuple[Observation, Truth]:
    """What the adversary sees of the rounds that its view asks for, and the truth behind it."""
    asked = view.rounds()
    view.check(federation.attendance(max(asked) + 1))
    transcript, truths = federation.run(max(asked) + 1, keep=asked), federation.truths(asked)
    seen = view.see(transcript, knows, truths)
    return seen.observation, truths.behind(seen.behind, max(asked), seen.own)
