"""How good the model is that a federation trained."""

from __future__ import annotations

import torch
from torch import nn

from fedglass.core.types import BatchNorm, Whitening
from fedglass.models.network import Network
from fedglass.rounds.transcript import Round
from fedglass.rounds.truth import Examples

AT_ONCE = 256
"""Test images classified at a time."""


def accuracy(model: nn.Module, last: Round, whitening: Whitening, test: Examples) -> float:
    """The share of the test examples that the global model after a round classifies rightly."""
    network = Network(model, last.buffers_after, BatchNorm.FROZEN)
    after = last.after
    weights, right = [after[name] for name in network.names], 0
    with torch.no_grad():
        for rows in torch.split(torch.arange(len(test.labels)), AT_ONCE):
            logits = network(weights, whitening.whiten(test.images[rows]))
            right += int((logits.argmax(1) == test.labels[rows]).sum())
    return right / len(test.labels)
