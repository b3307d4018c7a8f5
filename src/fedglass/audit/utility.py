"""How good a trained model is."""

from __future__ import annotations

import copy

import torch
from torch import nn

from fedglass.core.rng import stream
from fedglass.core.types import Whitening
from fedglass.data.dataset import Dataset
from fedglass.rounds.transcript import Round
from fedglass.rounds.truth import Examples

JUDGED = 1000
"""Images of a whole data set that an accuracy is taken over."""
AT_ONCE = 250


def accuracy(model: nn.Module, whitening: Whitening, test: Examples) -> float:
    """The share of the examples that the model classifies rightly; it is left in evaluation mode."""
    device = next(model.parameters()).device
    model.eval()
    right = 0
    with torch.no_grad():
        for rows in torch.split(torch.arange(len(test.labels)), AT_ONCE):
            logits = model(whitening.whiten(test.images[rows]).to(device))
            right += int((logits.argmax(1).cpu() == test.labels[rows]).sum())
    return right / len(test.labels)


def after(model: nn.Module, last: Round) -> nn.Module:
    """A copy of the global model as a round has left it, with its running statistics."""
    trained = copy.deepcopy(model)
    trained.load_state_dict({**last.after, **last.buffers_after}, strict=False)
    return trained


def sample(data: Dataset, seed: int) -> Examples:
    """At most 1000 examples of a data set, the first of a shuffle."""
    rows = torch.randperm(len(data), generator=stream(seed, "judged"))[:JUDGED]
    return Examples(data.images[rows], data.labels[rows])
