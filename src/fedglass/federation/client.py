"""Clients: their private examples, and their training in one round."""

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
from fedglass.core.losses import is_target
from fedglass.core.rng import stream
from fedglass.core.tensors import Params
from fedglass.core.types import BatchNorm, Training, Whitening
from fedglass.federation.behaviours import Behaviour, Honest, Turn
from fedglass.federation.transcript import Message
from fedglass.fl.local import GradientFn, LocalBatch, MeanGradient, path, schedule
from fedglass.fl.release import AsIs, Outgoing, Release
from fedglass.models.network import Network

CPU = torch.device("cpu")
STREAMS = ("noise", "release", "acts")
"""Random streams of a client's training: of its gradients, of its release and of its behaviour."""


@dataclass(frozen=True, eq=False)
class Client:
    """Private examples, with the training, behaviour and defences of the client that has them."""

    name: str
    images: Tensor  # (n, c, h, w), pixels in [0, 1]
    labels: Tensor  # (n,) classes, or targets of another loss
    gradient: GradientFn = field(default_factory=MeanGradient)
    release: Release = field(default_factory=AsIs)
    behaviour: Behaviour = field(default_factory=Honest)
    training: Training | None = None
    """The client's own training, where it differs from the federation's."""

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
        if len(self.labels) == n and is_target(self.labels):
            return
        if self.labels.shape != (n,) or self.labels.dtype != torch.int64:
            raise DataError(
                f"Client {self.name!r}: expected one int64 label for each of the {n} images, got labels of shape "
                f"{tuple(self.labels.shape)} and type {self.labels.dtype}."
            )


@dataclass(frozen=True, eq=False)
class TrainRequest:
    """The model and the instructions that the server sends to its clients in one round."""

    model: nn.Module
    before: Params
    buffers: Params
    training: Training
    whitening: Whitening
    seed: int
    round: int
    device: torch.device = CPU
    """Where the local steps are computed; messages come back to the CPU, where all else is done."""


def train_client(client: Client, request: TrainRequest) -> Message:
    """Play one client's part of a round: train, subtract, behave, release."""
    training = client.training or request.training
    network = Network(request.model, request.buffers, training.batch_norm, request.device)
    noise, release, acts = (stream(request.seed, use, client.name, request.round) for use in STREAMS)
    turn = Turn(client.images, client.labels, request.round, request.before, acts)
    images, labels = client.behaviour.examples(turn)
    if images.shape != client.images.shape or labels.shape != client.labels.shape:
        raise DataError(
            f"The behaviour of {client.name!r} gave {len(images)} images and {len(labels)} labels, expected "
            f"as many as the client has, {len(client.labels)}, of the same shape: its batches are drawn from these."
        )
    batches = local_batches(client, training, request.seed, request.round)
    inputs = request.whitening.whiten(images).to(request.device)
    start = [request.before[name].to(request.device) for name in network.names]
    buffers, add_step = running_statistics(request, training)
    for at, batch in zip_longest(
        path(network, start, inputs, labels.to(request.device), batches, training, client.gradient, noise), batches
    ):
        if batch is not None:
            add_step(dict(zip(network.names, at.weights, strict=True)), inputs[batch.rows])
    trained = dict(zip(network.names, (w.detach().cpu() for w in at.weights), strict=True))
    update = client.behaviour.update(turn, {name: trained[name] - request.before[name] for name in network.names})
    sent = client.release.release(Outgoing(update, release, request.round, request.before))
    return Message(client.name, sent, {name: buffer.cpu() for name, buffer in buffers.items()})


TrainClients = Callable[[Sequence[Client], TrainRequest], Sequence[Message]]
"""Have clients train on one request and return their messages, in the order of the clients."""


def train_sequentially(clients: Sequence[Client], request: TrainRequest) -> list[Message]:
    """Train in this process, one client after another."""
    return [train_client(client, request) for client in clients]


def local_batches(client: Client, training: Training, seed: int, index: int) -> list[LocalBatch]:
    """Return the batches of a client's training in that round; they depend on seed, name and round alone."""
    return list(schedule(training, len(client.labels), stream(seed, "batches", client.name, index)))


def running_statistics(request: TrainRequest, training: Training) -> tuple[Params, Callable[[Params, Tensor], None]]:
    """Return the running statistics of normalisation layers, and a function that updates them with one local step.

    Training with batch statistics changes them at each step. They do not influence the update, so that the function,
    which takes the weights before the step and its inputs, runs a separate forward pass.
    """
    if training.batch_norm is BatchNorm.FROZEN or not request.buffers:
        return request.buffers, lambda weights, inputs: None
    buffers = {name: tensor.clone().to(request.device) for name, tensor in request.buffers.items()}
    model = copy.deepcopy(request.model).to(request.device).eval()
    for layer in model.modules():
        layer.training = isinstance(layer, _NormBase)  # not dropout, which would draw from the global generator

    def add_step(weights: Params, inputs: Tensor) -> None:
        with torch.no_grad():
            functional_call(model, {**weights, **buffers}, (inputs,))

    return buffers, add_step
