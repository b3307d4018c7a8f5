"""Predictions that go through the filter which the client is declared to have applied to its update."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedglass.attack.forward.target import limits_before_filter
from fedglass.attack.needs import reads_of
from fedglass.attack.parts import BoundForward, Forward
from fedglass.core.facts import Fact
from fedglass.core.tensors import Update
from fedglass.core.types import Candidate, Observation


@dataclass(frozen=True)
class ThroughFilter:
    """The prediction of `forward` after the declared filter of the update, such as pruning or clipping its entries.

    Message and filter give limits for each entry before the filter: an entry that was cut off at gamma was gamma or
    more, and one that was set to zero was no larger than the smallest that was kept. A predicted entry within its
    limits becomes that of the message, and one outside keeps its distance from the nearer limit: with `SquaredError`
    this is regression with censored observations [Tobin, 1958]. Entries that the filter left alone are compared as
    they are. Without a declared filter, or without the size of the gradients, this is `forward` alone.
    """

    forward: Forward

    def reads(self, observation: Observation) -> frozenset[Fact]:
        return reads_of(self.forward, observation)

    def bind(self, observation: Observation) -> BoundForward:
        inner, limits = self.forward.bind(observation), limits_before_filter(observation)
        scale = _scale(inner, observation.update)
        if limits is None or scale is None:
            return inner
        ends = [[side[name] * scale for side in limits] for name in inner.names]
        rows = [(y, torch.minimum(*pair), torch.maximum(*pair)) for y, pair in zip(inner.target, ends, strict=True)]

        def predict(candidate: Candidate, unknowns: Sequence[Tensor]) -> Sequence[Tensor]:
            predicted = inner.predict(candidate, unknowns)
            return [_filtered(g, *row) for g, row in zip(predicted, rows, strict=True)]

        return replace(inner, predict=predict)


def _filtered(predicted: Tensor, sent: Tensor, low: Tensor, high: Tensor) -> Tensor:
    outside = predicted - predicted.clamp(low, high)
    return torch.where(low == high, predicted, sent + outside)


def _scale(forward: BoundForward, update: Update) -> float | None:
    """Return what the operator multiplies the update by; None where its target is not a multiple of a message."""
    if not all(name in update for name in forward.names):
        return None
    moved = torch.cat([update[name].flatten() for name in forward.names])
    largest = int(moved.abs().argmax())
    sent = torch.cat([tensor.flatten() for tensor in forward.target])
    return float(sent[largest] / moved[largest]) if bool(moved.any()) else None
