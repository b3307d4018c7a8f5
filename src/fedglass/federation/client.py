"""A client, its private examples and what it does with them in a round."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.batchnorm import _NormBase

from fedglass.core.errors import DataError
from fedglass.core.rng import stream
from fedglass.core.tensors import Params
from fedglass.core.types import BatchNorm, Training, Whitening
from fedglass.federation.behaviour.behaviour import Behaviour, Honest, Turn
from fedglass.federation.transcript import Message
from fedglass.fl.local import Batch, GradientFn, MeanGradient, path, schedule
from fedglass.fl.release import AsIs, Outgoing, Release
from fedglass.models.network import Network


@dataclass(frozen=True, eq=False)
class Client:
    """Private examples, how they are trained on, how the client behaves, and what is done to the update that leaves."""

    name: str
    images: Tensor  # (n, c, h, w), pixels in [0, 1]
    labels: Tensor  # (n,)
    gradient: GradientFn = field(default_factory=MeanGradient)
    release: Release = field(default_factory=AsIs)
    behaviour: Behaviour = field(default_factory=Honest)
    training: Training | None = None
    """Its own, where it differs from the federation's."""

    def __post_init__(self) -> None:
        n = len(self.images)
        if self.images.ndim != 4 or n == 0:
            raise DataError(
                f"Client {self.name!r}: images must have shape (examples, channels, height, width) with at "
                f"least one example, got {tuple(self.images.shape)}."
            )
        if not bool(((self.images >= 0) & (self.images <= 1)).all()):  # false for NaN too
            raise DataError(
                f"Client {self.name!r}: pixels must be finite and in [0, 1], got {float(self.images.min()):g} to "
                f"{float(self.images.max()):g}: scale them, and leave the whitening to the federation."
            )
        if self.labels.shape != (n,) or self.labels.dtype != torch.int64:
            raise DataError(
                f"Client {self.name!r}: expected one int64 label for each of the {n} images, got labels of shape "
                f"{tuple(self.labels.shape)} and type {self.labels.dtype}."
            )


@dataclass(frozen=True, eq=False)
class Call:
    """What the server sends to a client in one round."""

    model: nn.Module
    before: Params
    buffers: Params
    training: Training
    whitening: Whitening
    seed: int
    round: int


def respond(client: Client, call: Call) -> Message:
    """One client's part of a round: train, subtract, behave, release."""
    training = client.training or call.training
    network = Network(call.model, call.buffers, training.batch_norm)
    inner, outer, acting = (stream(call.seed, use, client.name, call.round) for use in ("noise", "release", "acts"))
    turn = Turn(client.images, client.labels, call.round, call.before, acting)
    images, labels = client.behaviour.examples(turn)
    if images.shape != client.images.shape or labels.shape != client.labels.shape:
        raise DataError(
            f"The behaviour of {client.name!r} gave {len(images)} images and {len(labels)} labels, expected "
            f"as many as the client has, {len(client.labels)}, of the same shape: its batches are drawn from these."
        )
    batches = local_batches(client, training, call.seed, call.round)
    inputs = call.whitening.whiten(images)
    start = [call.before[name] for name in network.names]
    statistics = RunningStatistics(call, training)
    for at, batch in zip_longest(
        path(network, start, inputs, labels, batches, training, client.gradient, inner), batches
    ):
        if batch is not None:
            statistics.gather(dict(zip(network.names, at.weights, strict=True)), inputs[batch.rows])
    trained = dict(zip(network.names, (w.detach() for w in at.weights), strict=True))
    update = client.behaviour.update(turn, {name: trained[name] - call.before[name] for name in network.names})
    return Message(
        client.name, client.release.release(Outgoing(update, outer, call.round, call.before)), statistics.buffers
    )


Answers = Callable[[Sequence[Client], Call], Sequence[Message]]
"""How clients are had to respond to one call; their messages come in the order of the clients."""


def one_by_one(clients: Sequence[Client], call: Call) -> list[Message]:
    """Here, one client after another."""
    return [respond(client, call) for client in clients]


def local_batches(client: Client, training: Training, seed: int, index: int) -> list[Batch]:
    """The batches of a client's training in that round, which depend on seed, name and round alone."""
    return list(schedule(training, len(client.labels), stream(seed, "batches", client.name, index)))


class RunningStatistics:
    """The normalisation layers' running statistics, which training with batch statistics moves at each step.

    They do not influence the update: of each step they are gathered in a pass of their own.
    """

    def __init__(self, call: Call, training: Training) -> None:
        self.buffers = call.buffers
        self._model: nn.Module | None = None
        if training.batch_norm is BatchNorm.FROZEN or not call.buffers:
            return
        self.buffers = {name: tensor.clone() for name, tensor in call.buffers.items()}
        self._model = copy.deepcopy(call.model).eval()
        for layer in self._model.modules():
            layer.training = isinstance(layer, _NormBase)  # not dropout, which would draw from the global generator

    def gather(self, weights: Params, inputs: Tensor) -> None:
        """What a step on these inputs, which starts from these weights, leaves behind."""
        if self._model is not None:
            with torch.no_grad():
                functional_call(self._model, {**weights, **self.buffers}, (inputs,))
