"""A federation so small that an audit of it takes a second."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from fedglass.audit.audit import Job
from fedglass.audit.sources import Simulated
from fedglass.core.rng import stream
from fedglass.core.types import Training, Whitening
from fedglass.models.catalogue import build
from fedglass.models.init import Uniform
from fedglass.recipes.catalogue import recipe
from fedglass.rounds.client import Client
from fedglass.rounds.federation import Federation
from fedglass.rounds.views import Knows, ServerView

SHAPE, CLASSES = (1, 12, 12), 4


def tiny_clients(clients: int = 2, examples: int = 1, seed: int = 0) -> list[Client]:
    made = []
    for i in range(clients):
        generator = stream(seed, "tiny", i)
        images = torch.rand(examples, *SHAPE, generator=generator)
        labels = torch.randint(CLASSES, (examples,), generator=generator)
        made.append(Client(f"client {i}", images, labels))
    return made


@pytest.fixture
def make_federation() -> Callable[..., Federation]:
    def make(clients: int = 2, examples: int = 1, lr: float = 0.1, **more: object) -> Federation:
        model = build("lenet", shape=SHAPE, classes=CLASSES, init=Uniform())
        members = tiny_clients(clients, examples)
        return Federation(model, members, Training(lr=lr), CLASSES, Whitening((0.5,), (0.3,)), **more)  # type: ignore[arg-type]  # passed on

    return make


@pytest.fixture
def make_job(make_federation: Callable[..., Federation]) -> Callable[..., Job]:
    def make(
        views: tuple[ServerView, ...] = (ServerView(0), ServerView(1)),
        knows: Knows = Knows(),  # noqa: B008  # frozen
        federation: Federation | None = None,
        iterations: int = 5,
        **more: object,
    ) -> Job:
        source = Simulated(federation or make_federation(), 1, views, knows)
        attacks = {name: recipe(name, iterations=iterations) for name in ("inverting_gradients", "idlg")}
        return Job([source], more.pop("attacks", attacks), metrics=("psnr", "ssim"), **more)  # type: ignore[arg-type]  # passed on

    return make
