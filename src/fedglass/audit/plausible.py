"""How large the message of a declared training is on other images: what is plausible, without the truth."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedglass.core.params import Params
from fedglass.core.rng import stream
from fedglass.core.types import BatchNorm, Training, Whitening
from fedglass.fl.local import schedule, train
from fedglass.models.network import Network

LONGEST = 50
"""Local steps beyond which a training is not tried on other images."""
SURE = 0.5
"""The probability from which on a network is sure of an image."""


@dataclass(frozen=True, eq=False)
class Declaration:
    """A training from given weights, whatever the data were."""

    model: nn.Module
    before: Params
    buffers: Params
    shape: tuple[int, int, int]
    whitening: Whitening
    training: Training
    steps: int


def largest(declared: Declaration) -> float | None:
    """The largest norm of one step, under the labels that surprise the network most; None after several steps.

    Several may leave the region where gradients are what they were: a training that diverges has no largest size.
    """
    if declared.steps > 1:
        return None
    network = _network(declared)
    return max(_norm(declared, network, inputs, p.argmin(1)) for inputs, p in _expected(declared, network))


def smallest(declared: Declaration) -> float | None:
    """The smallest norm under the labels that the network expects; infinite where the training diverges each time.

    None where the network is sure of any image, so that it may have learnt what it is sure of, or where the training
    is too long to be tried.
    """
    network = _network(declared)
    expected = _expected(declared, network)
    if declared.steps > LONGEST or _sure(expected):
        return None
    return min(_norm(declared, network, inputs, p.argmax(1)) for inputs, p in expected)


def knows_nothing(declared: Declaration) -> bool:
    """Whether the network is sure of no image: one that has learnt its data may have hardly a gradient there."""
    return not _sure(_expected(declared, _network(declared)))


def _sure(expected: list[tuple[Tensor, Tensor]]) -> bool:
    return any(not float(p.max()) < SURE for _, p in expected)


def _network(declared: Declaration) -> Network:
    return Network(declared.model, declared.buffers, declared.training.batch_norm)


def _expected(declared: Declaration, network: Network) -> list[tuple[Tensor, Tensor]]:
    """Other images, and the probabilities that the network gives their classes."""
    weights = [declared.before[name] for name in network.names]
    with torch.no_grad():
        return [(inputs, F.softmax(network(weights, inputs), dim=1)) for inputs in _batches(declared)]


def _batches(declared: Declaration) -> Iterator[Tensor]:
    """One image at a time; together where layers normalise by the batch, which one image may not be enough for."""
    inputs = declared.whitening.whiten(_images(declared.shape))
    return iter([inputs] if declared.training.batch_norm is BatchNorm.BATCH else torch.split(inputs, 1))


def _images(shape: tuple[int, int, int]) -> Tensor:
    """Noise, smooth noise, and flat ones: from the busiest to the plainest that pixels can be.  # (4, c, h, w)"""
    noise = torch.rand(1, *shape, generator=stream(0, "plausible"))
    coarse = torch.rand(1, shape[0], 3, 3, generator=stream(1, "plausible"))
    smooth = F.interpolate(coarse, size=shape[1:], mode="bilinear", align_corners=True)
    return torch.cat([noise, smooth, torch.zeros(1, *shape), torch.ones(1, *shape)])


def _norm(declared: Declaration, network: Network, inputs: Tensor, labels: Tensor) -> float:
    """The norm of the message; infinite where the training diverges."""
    whole = replace(declared.training, epochs=1, batch_size=None, steps=declared.steps, shuffle=False)
    start = [declared.before[name] for name in network.names]
    after = train(network, start, inputs, labels, schedule(whole, len(labels), None), whole)
    square = sum(float((a - b).double().square().sum()) for a, b in zip(after, start, strict=True))
    return math.sqrt(square) if math.isfinite(square) else math.inf
