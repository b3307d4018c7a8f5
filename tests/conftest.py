"""Fixtures shared by all tests."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner, Result
from hypothesis import settings
from torch import Tensor, nn
from torch.nn import functional as F

from fedglass.attack.exact import features, last_layer, spear
from fedglass.attack.malicious_server import MaliciousServer, PublicSample
from fedglass.attack.parts import needs_of
from fedglass.audit.audit import Job
from fedglass.audit.simulated import Simulated
from fedglass.checks import replay
from fedglass.cli.main import cli
from fedglass.core.facts import Fact
from fedglass.core.rng import stream
from fedglass.core.types import Candidate, Observation, Own, Training, Whitening
from fedglass.federation.client import Client
from fedglass.federation.federation import Federation, observe
from fedglass.federation.views import Knows, ServerView
from fedglass.fl.local import schedule
from fedglass.models.catalogue import build
from fedglass.models.init import Uniform
from fedglass.recipes import recipe

# The same examples in every run, and no clock: a busy machine must not fail a law.
settings.register_profile("calm", deadline=None, derandomize=True, max_examples=50)
settings.load_profile("calm")


class ReadingsClock:
    """A clock that moves on by a millisecond whenever it is read: a limit on time is one on the number of readings."""

    def __init__(self) -> None:
        self._now = 0.0

    def monotonic(self) -> float:
        self._now += 0.001
        return self._now

    process_time = monotonic


@pytest.fixture(autouse=True)
def no_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Searches that stop after some seconds find the same on a busy machine."""
    for module in (features, last_layer, replay, spear):
        monkeypatch.setattr(module, "time", ReadingsClock())


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    """Small tensors run faster, and bit-identically, on one thread."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real data and weights; tests that need it skip where it is absent."""
    beside = Path(__file__).resolve().parents[2] / "shared" / "data"
    path = Path(os.environ.get("FEDGLASS_SHARED", beside))
    if not path.is_dir():
        pytest.skip("no shared data: set FEDGLASS_SHARED to a folder that holds it")
    return path


WHITENING = Whitening((0.4,), (0.3,))
SIDE = 8
FEDSGD = Training(lr=0.1)
TOLD = Knows(labels=True)


class Toy:
    """A world of 8x8 grey pictures in which every attack takes a moment."""

    classes = 5

    def dense(self, activation: type[nn.Module] = nn.Sigmoid) -> nn.Module:
        """64 - 32 - 5, two dense layers."""
        layers = nn.Flatten(), nn.Linear(SIDE**2, 32), activation(), nn.Linear(32, self.classes)
        return self.seeded(nn.Sequential(*layers))

    def normalised(self) -> nn.Module:
        """A convolution, batch normalisation with statistics of its own, a dense layer."""
        norm = nn.BatchNorm2d(3)
        model = nn.Sequential(
            nn.Conv2d(1, 3, 3, padding=1), norm, nn.Sigmoid(), nn.AvgPool2d(4), nn.Flatten(), nn.Linear(12, 5)
        )
        self.seeded(model)
        assert norm.running_mean is not None
        assert norm.running_var is not None
        norm.running_mean.copy_(torch.tensor([0.1, -0.2, 0.3]))
        norm.running_var.copy_(torch.tensor([0.5, 1.5, 2.0]))
        return model

    def seeded(self, model: nn.Module) -> nn.Module:
        """Weights from a stream of their own, wide enough that the gradients tell images apart."""
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                draw = torch.rand(parameter.shape, generator=stream(7, "toy weights", name))
                parameter.copy_(draw - 0.5)
        return model

    def images(self, n: int, *name: str | int) -> Tensor:
        """Smooth pictures with pixels in [0, 1].  # (n, 1, 8, 8)"""
        coarse = torch.rand(n, 1, 3, 3, generator=stream(7, "toy images", *name))
        return F.interpolate(coarse, (SIDE, SIDE), mode="bilinear", align_corners=True).clamp(0, 1)

    def client(self, index: int = 0, examples: int = 4, **parts: Any) -> Client:
        labels = torch.randint(self.classes, (examples,), generator=stream(7, "toy labels", index))
        return Client(f"client {index}", self.images(examples, index), labels, **parts)

    def federation(
        self, training: Training, model: nn.Module | None = None, clients: int = 1, examples: int = 4, **facts: Any
    ) -> Federation:
        members = [self.client(i, examples) for i in range(clients)]
        chosen = self.dense() if model is None else model
        return Federation(chosen, members, training, self.classes, WHITENING, **facts)

    def observation(self, training: Training = FEDSGD, knows: Knows = TOLD, **facts: Any) -> Observation:
        """What the server sees of the one client's first round."""
        return observe(self.federation(training, **facts), ServerView(), knows)[0]

    def trained_on(self, federation: Federation, client: int = 0, round_index: int = 0) -> Candidate:
        """The client's own examples, whitened, in the order in which each of its epochs took them."""
        member, training = federation.clients[client], federation.training
        shuffle = stream(federation.seed, "batches", member.name, round_index)
        n = len(member.labels)
        epochs: list[list[int]] = [[] for _ in range(training.passes(n))]
        for batch in schedule(training, n, shuffle):
            epochs[batch.epoch] += torch.arange(n)[batch.rows].tolist()
        # A later epoch that was cut short has what it did not take at its end; the first took all there are.
        taken = set(epochs[0])
        order = torch.tensor([rows + sorted(taken - set(rows)) for rows in epochs])  # (epochs, n)
        return Candidate(federation.whitening.whiten(member.images)[order], member.labels[order])


@pytest.fixture(scope="session")
def toy() -> Toy:
    return Toy()


@pytest.fixture(scope="session")
def equipped() -> Callable[..., Observation]:
    """An observation in which the adversary has examples of its own that are not in the message, where an attack needs
    some."""

    def equip(attack: object, seen: Observation, images: Tensor) -> Observation:
        if Fact.OWN_EXAMPLES not in needs_of(attack):
            return seen
        labels = torch.zeros(len(images), dtype=torch.int64)
        return replace(seen, own=Own(images, labels, seen.update, share=0.0))

    return equip


@pytest.fixture(scope="session")
def same() -> Callable[[Any, Any], bool]:
    """Whether two tensors, or two mappings of them, are bit-identical."""

    def compare(left: Any, right: Any) -> bool:
        if isinstance(left, Tensor):
            return bool(torch.equal(left, right))
        return list(left) == list(right) and all(torch.equal(left[name], right[name]) for name in left)

    return compare


# A federation so small that an audit of it takes a second.
TINY_SHAPE, TINY_CLASSES = (1, 12, 12), 4


def tiny_clients(clients: int = 2, examples: int = 1, seed: int = 0) -> list[Client]:
    made = []
    for i in range(clients):
        generator = stream(seed, "tiny", i)
        images = torch.rand(examples, *TINY_SHAPE, generator=generator)
        labels = torch.randint(TINY_CLASSES, (examples,), generator=generator)
        made.append(Client(f"client {i}", images, labels))
    return made


@pytest.fixture
def make_federation() -> Callable[..., Federation]:
    def make(clients: int = 2, examples: int = 1, lr: float = 0.1, **more: object) -> Federation:
        model = build("lenet", shape=TINY_SHAPE, classes=TINY_CLASSES, init=Uniform())
        members = tiny_clients(clients, examples)
        return Federation(model, members, Training(lr=lr), TINY_CLASSES, Whitening((0.5,), (0.3,)), **more)  # type: ignore[arg-type]  # passed on

    return make


@pytest.fixture(scope="session")
def receiving() -> Callable[[object, Federation], Federation]:
    """The federation with the model that a malicious server sends for an attack; other attacks leave it as it is."""

    def receive(attack: object, federation: Federation) -> Federation:
        if not isinstance(attack, MaliciousServer):
            return federation
        public = PublicSample(torch.rand(64, *federation.shape, generator=stream(0, "public")), federation.whitening)
        return replace(federation, model=attack.sends.craft(federation.model, public))

    return receive


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


@pytest.fixture
def fedglass() -> Callable[..., Result]:
    """Runs a command; an exception that is not ours fails the test with its traceback."""

    def run(*arguments: object) -> Result:
        return CliRunner().invoke(cli, [str(a) for a in arguments], catch_exceptions=False)

    return run
