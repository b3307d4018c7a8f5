"""The server's side of a federation: the global model, and what its aggregation rule remembers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedglass.core.params import Params, add, flatten, subtract, unflatten
from fedglass.core.rng import stream
from fedglass.fl.aggregate.rule import AggregationContext, Aggregator, State
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

    def combine(self, index: int, participants: Sequence[Participant], messages: Sequence[Message]) -> Round:
        """The round that these messages make; the global model moves on.

        Weights and running statistics go through the rule together, in one order of names, whatever a release did
        to the order of its own. Counters have no mean: they are taken from the first that got through.
        """
        weights, buffers = self.weights, self.buffers
        moving = _floating(buffers)
        rows = [
            _row({name: m.update[name] for name in weights}, subtract(_floating(m.buffers), moving)) for m in messages
        ]
        context = AggregationContext(
            torch.tensor([float(p.examples) for p in participants]),
            index,
            tuple(p.name for p in participants),
            _row(weights, buffers),
            self.previous,
            stream(self.seed, "rule", index),
        )
        found = self.rule.aggregate(torch.stack(rows), context, self.state)
        self.state, self.previous = found.state, found.step
        step, drift = _split(found.step, weights, moving)
        through = [m for m, kept in zip(messages, found.kept.tolist(), strict=True) if kept]
        counters = (through or list(messages))[0].buffers
        self.weights = add(weights, step)
        self.buffers = {name: b + drift[name] if name in drift else counters[name] for name, b in buffers.items()}
        names = tuple(m.client for m in through)
        return Round(weights, buffers, tuple(participants), tuple(messages), step, self.buffers, names)


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
