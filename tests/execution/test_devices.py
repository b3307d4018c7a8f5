"""All computations of an audit on a device that is not the CPU: a pretended one, since tests have no GPU."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

import numpy as np
import pytest
import torch
from tests.devices import pretended_device
from torch import Tensor, nn

from fedglass.attack.parts import needs_of, no_progress
from fedglass.audit.audit import Job
from fedglass.audit.check_message import CheckMessage
from fedglass.audit.play import Work, play_case
from fedglass.audit.probes import PlayGame
from fedglass.audit.public_data import Public
from fedglass.audit.simulated import Simulated
from fedglass.audit.target import Case, Probe, Target
from fedglass.core.errors import UsageError
from fedglass.core.facts import Fact
from fedglass.core.optimisers import Adam
from fedglass.core.registry import built_in
from fedglass.core.rng import stream
from fedglass.core.types import BatchNorm, Training
from fedglass.defend.dpsgd import DPSGD, GhostDPSGD, PoissonDPSGD
from fedglass.defend.noise import Clip, GaussianNoise
from fedglass.defend.outpost import Outpost
from fedglass.defend.pruning import Soteria
from fedglass.execution.executor import InProcess, client_trainer
from fedglass.execution.machine import device_named, repeatable_arithmetic
from fedglass.federation.federation import Federation
from fedglass.federation.peer import PeerView
from fedglass.federation.views import Knows
from fedglass.fl.local import GradientFn, MeanGradient
from fedglass.recipes import recipe
from fedglass.verdict.directory import Reconstructed

CPU = torch.device("cpu")
MakeFederation = Callable[..., Federation]
MakeJob = Callable[..., Job]
Result = TypeVar("Result")
GRADIENTS = (
    MeanGradient(),
    DPSGD(1.0, 1.0),
    GhostDPSGD(1.0, 1.0),
    PoissonDPSGD(1.0, 1.0, 0.5),
    Outpost(),
    Soteria(0.5),
)


def on_both(compute: Callable[[torch.device], Result]) -> tuple[Result, Result]:
    """Return what is computed on the CPU, and on the pretended device."""
    on_cpu = compute(CPU)
    with pretended_device() as device:
        return on_cpu, compute(device)


def test_the_pretended_device_is_strict() -> None:
    with pretended_device() as device:
        there = torch.ones(3).to(device)
        assert (there.device, (there + 1).device, (there * torch.tensor(2.0)).device) == (device, device, device)
        with pytest.raises(RuntimeError, match="mixes"):
            there + torch.ones(3)
        with pytest.raises(TypeError, match="float64"):
            there.double()
        with pytest.raises(TypeError, match="copy it to the CPU"):
            there.numpy()
        assert torch.equal((there + 1).cpu(), torch.full((3,), 2.0))


def normalising() -> nn.Module:
    """A network that every client's step moves the running statistics of."""
    torch.manual_seed(0)
    body = (nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.Sigmoid(), nn.AvgPool2d(5))
    return nn.Sequential(*body, nn.Flatten(), nn.Linear(12, 4))


@pytest.mark.parametrize("gradient", GRADIENTS, ids=repr)
def test_clients_train_on_the_device(
    make_federation: MakeFederation, same: Callable[..., bool], gradient: GradientFn
) -> None:
    federation = make_federation(clients=1, examples=2)
    training = Training(0.1, batch_size=1)
    if gradient == MeanGradient():
        training = replace(training, batch_size=None, epochs=2, batch_norm=BatchNorm.BATCH, optimiser=Adam())
        federation = replace(federation, model=normalising())
    client = replace(federation.clients[0], gradient=gradient, release=Clip(1.0))
    federation = replace(federation, clients=[client], training=training, server=replace(client, name="server"))
    here, there = on_both(lambda on: federation.run(train_clients=client_trainer(InProcess(), on)).rounds[0])
    assert same(here.step, there.step)
    assert same(here.buffers_after, there.buffers_after)
    sent = [tensor for message in there.messages for tensor in (*message.update.values(), *message.buffers.values())]
    assert all(type(tensor) is Tensor for tensor in sent)


@pytest.mark.parametrize("noise", [0.0, 0.001])
@pytest.mark.parametrize("probe", [CheckMessage(), PlayGame()], ids=repr)
def test_checks_and_the_game_give_the_same_on_the_device(
    make_federation: MakeFederation, probe: Probe, noise: float
) -> None:
    federation = make_federation(clients=1, examples=2)
    clients = [replace(client, release=GaussianNoise(noise)) for client in federation.clients] if noise else None
    federation = replace(federation, clients=clients or federation.clients)
    pool = Public.of(torch.rand(80, *federation.shape, generator=stream(0, "pool")), torch.arange(80) % 4)
    (target,) = Simulated(federation, public=pool).targets(no_progress)
    assert isinstance(target, Target)
    target = replace(target, simulated=False)  # as if it was recorded, so that its claim is checked
    facts = {"kind": probe.kind, "attack": "x", "attack_repr": "", "view": "", "round": 0, "repeat": 0}
    case = Case("key", "", probe, 0, (0, 0), facts)
    here, there = on_both(lambda device: play_case(Work(case, target, device), no_progress)[0])
    assert there.status == "done", there.error
    assert here.doubts == there.doubts
    assert (here.certificate, here.game, here.extra) == (there.certificate, there.game, there.extra)


@pytest.mark.parametrize("name", built_in("attacks"))
def test_attacks_give_the_same_on_the_device(
    name: str,
    make_job: MakeJob,
    make_federation: MakeFederation,
    receiving: Callable[[object, Federation], Federation],
) -> None:
    few = {"iterations": 2} if "iterations" in inspect.signature(built_in("attacks")[name].value).parameters else {}
    attack = recipe(name, **few)
    views = {"views": (PeerView(0),)} if Fact.OWN_EXAMPLES in needs_of(attack) else {}
    federation = replace(receiving(attack, make_federation(examples=2)), training=Training(0.1, 2, 1))
    job = make_job(federation=federation, knows=Knows(labels=True, batch_labels=True), attacks={name: attack}, **views)
    target, case = job.sources[0].targets(no_progress)[0], job.cases[-1]
    (_, here), (record, there) = on_both(lambda device: play_case(Work(case, target, device), no_progress))
    assert record.status == "done", record.error
    assert isinstance(here, Reconstructed)
    assert isinstance(there, Reconstructed)
    np.testing.assert_array_equal(here.images, there.images)


def test_a_device_is_chosen_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    assert device_named("cpu") == CPU
    for name in ("abacus", "cpu:1", "cuda:", "cuda:x", "cuda:-1", ""):
        with pytest.raises(UsageError, match="device must be one of auto, cpu, cuda, cuda:N, mps"):
            device_named(name)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert (device_named("auto"), device_named("cuda:1")) == (torch.device("cuda"), torch.device("cuda:1"))
    with pytest.raises(UsageError, match=r"'cuda:2'.*choose auto or cpu"):
        device_named("cuda:2")


def test_jobs_compute_in_full_precision_and_leave_the_setting_as_it_was() -> None:
    def flags() -> tuple[bool, bool]:
        return torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32

    before = flags()
    with repeatable_arithmetic():
        assert flags() == (False, False)
    assert flags() == before
