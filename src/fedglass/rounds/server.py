"""The server's side of a federation: the global model, and what its aggregation rule remembers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedglass.core.params import Params, add, flatten, subtract, unflatten
from fedglass.core.rng import stream
from fedglass.fl.aggregate.rule import Aggregated, AggregationContext, Aggregator, State
from fedglass.rounds.transcript import Message, Participant, Round


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
        passed = {p.name for p, kept in zip(senders, found.kept.tolist(), strict=True) if kept}
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
