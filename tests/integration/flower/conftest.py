"""A Flower federation in this process: real strategies, real client apps and real messages, without a network."""

from __future__ import annotations

import inspect
import os
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

os.environ["FLWR_TELEMETRY_ENABLED"] = "0"

from flwr.app import ArrayRecord, ConfigRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

try:
    from flwr.supercore.task_identity import TaskIdentity
except ImportError:  # before Flower 1.40 or so nobody asks for it

    class TaskIdentity:  # type: ignore[no-redef] # in its place
        """Nobody's."""


EXAMPLES, CLASSES = 6, 5
MORE = {"series_id": None} if "series_id" in inspect.signature(Context).parameters else {}
"""What newer contexts have beside the older ones' arguments."""


class Net(nn.Module):
    """A convolution with batch normalisation, and a scalar parameter of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.Sigmoid(), nn.AvgPool2d(2), nn.Flatten()
        )
        self.head = nn.Linear(64, CLASSES)
        self.scale = nn.Parameter(torch.tensor(1.0))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(images)) * self.scale


def examples_of(partition: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Pixels in [0, 1] and labels of a client."""
    generator = torch.Generator().manual_seed(partition)
    images = torch.rand(EXAMPLES, 1, 8, 8, generator=generator)
    return images, torch.randint(CLASSES, (EXAMPLES,), generator=generator)


def whitened(images: torch.Tensor) -> torch.Tensor:
    return (images - 0.5) / 0.25


@dataclass
class Federation:
    """Nodes with the ids that they have, and what each of them answered, before anything else saw it."""

    app: ClientApp
    nodes: tuple[int, ...] = (70, 80, 90, 100, 110)
    failing: tuple[int, ...] = ()
    silent: tuple[int, ...] = ()
    answers: list[dict[int, dict[str, Any]]] = field(default_factory=list)

    def get_node_ids(self) -> Iterable[int]:
        return self.nodes

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        replies, turn = [], {}
        for message in messages:
            node = message.metadata.dst_node_id
            if node in self.silent:
                continue
            TaskIdentity.node_id = node
            context = Context(1, node, {"partition-id": self.nodes.index(node)}, RecordDict(), {}, **MORE)
            reply = Message(Error(6, "refused"), reply_to=message) if node in self.failing else None
            reply = self.app(message, context) if reply is None else reply
            replies.append(reply)
            if not reply.has_error():
                turn[node] = {k: v.numpy().copy() for k, v in reply.content["arrays"].items()}
        TaskIdentity.node_id = 1
        if turn:
            self.answers.append(turn)
        return replies

    def play(self, strategy: Any, rounds: int = 2) -> dict[str, Any]:
        """Train, and give the last global model; Flower draws nodes and noise from global generators."""
        random.seed(0)
        np.random.seed(0)  # noqa: NPY002
        torch.manual_seed(0)
        result = strategy.start(
            grid=self,
            initial_arrays=ArrayRecord(Net().state_dict()),
            num_rounds=rounds,
            train_config=ConfigRecord({"lr": 0.1}),
        )
        return {name: array.numpy() for name, array in result.arrays.items()}


def client_app(mods: list[Any] | None = None, batch: int = 3, **told: Any) -> ClientApp:
    """A client that trains two epochs with momentum, as anybody would write it."""
    app = ClientApp(mods=mods or [])

    @app.train()
    def train(message: Message, context: Context) -> Message:
        partition = int(context.node_config["partition-id"])
        model = Net()
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        images, labels = examples_of(partition)
        optimiser = torch.optim.SGD(model.parameters(), lr=message.content["config"]["lr"], momentum=0.9)
        model.train()
        for _ in range(2):
            for rows in torch.randperm(EXAMPLES, generator=torch.Generator().manual_seed(partition)).split(batch):
                optimiser.zero_grad()
                F.cross_entropy(model(whitened(images[rows])), labels[rows]).backward()
                optimiser.step()
        metrics = MetricRecord({"num-examples": EXAMPLES, "partition-id": partition, **told})
        content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics})
        return Message(content=content, reply_to=message)

    return app


@pytest.fixture(autouse=True)
def identity() -> None:
    """What Flower's own processes set before they make messages."""
    TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1


@pytest.fixture
def federation() -> Callable[..., Federation]:
    """A federation of five nodes whose clients have these mods."""

    def make(mods: list[Any] | None = None, **options: Any) -> Federation:
        return Federation(client_app(mods), **options)

    return make
