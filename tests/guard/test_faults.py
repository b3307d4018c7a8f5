"""The guard fails closed: whatever goes wrong inside, and however, the update does not leave."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from fedglass.core.types import Training
from fedglass.guard import REFUSED, Guard, GuardReport, Reason
from fedglass.guard.runners import InlineRunner, SubprocessRunner

FAULTY = '''
import asyncio, os, resource, signal, threading, time
import numpy as np
import torch
from torch import nn

SECRET = "patient 4711"

class Own(BaseException):
    pass

class OwnError(Exception):
    pass

def raising(error):
    def fault():
        raise error
    return fault

def within(allowed, allocate):
    """Allocate for real, with so little memory allowed to the process that it cannot."""
    def fault():
        with open("/proc/self/statm") as file:
            used = int(file.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + allowed, used + allowed))
        kept = allocate()
        raise AssertionError(f"it had the memory for {len(kept)}")
    return fault

def growing():
    kept = []
    while True:
        kept.append(bytearray(1 << 24))

def dying(number):
    return lambda: os.kill(os.getpid(), number)

def spinning():
    while True:
        pass

def swallowing():
    while True:
        try:
            time.sleep(3600)
        except BaseException:
            pass

FAULTS = {
    "exception": [
        raising(error(SECRET))
        for error in (ValueError, RuntimeError, KeyError, OSError, AssertionError, TypeError, EOFError, OwnError)
    ],
    "base exception": [
        raising(error)
        for error in (
            SystemExit(0), SystemExit(SECRET), SystemExit(None), KeyboardInterrupt(SECRET), GeneratorExit(SECRET),
            asyncio.CancelledError(SECRET), Own(SECRET), BaseExceptionGroup(SECRET, [SystemExit(0)]),
        )
    ],
    "time-out": [
        lambda: time.sleep(3600),
        spinning,
        swallowing,
        lambda: threading.Event().wait(),
        lambda: threading.Barrier(2).wait(),
        lambda: signal.pause(),
        lambda: os.read(os.pipe()[0], 1),
        lambda: os.kill(os.getpid(), signal.SIGSTOP),
    ],
    "memory": [
        lambda: torch.empty(1 << 60),
        lambda: bytearray(1 << 60),
        lambda: np.empty(1 << 50),
        raising(MemoryError(SECRET)),
        within(1 << 27, lambda: torch.ones(1 << 26)),
        within(1 << 27, lambda: bytearray(1 << 28)),
        within(1 << 27, growing),
        within(1 << 27, lambda: [torch.zeros(1 << 22) for _ in range(1 << 10)]),
    ],
    "killed": [
        dying(signal.SIGKILL),
        dying(signal.SIGTERM),
        dying(signal.SIGABRT),
        dying(signal.SIGBUS),
        dying(signal.SIGUSR1),
        os.abort,
        lambda: os._exit(0),
        lambda: os._exit(1),
    ],
}

class Faulty(nn.Module):
    """A network with a fault after some passes."""

    kind, number, passes = "", 0, 0

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(4, 6), nn.Sigmoid(), nn.Linear(6, 3))

    def forward(self, inputs):
        if self.kind:
            self.passes -= 1
            if self.passes < 0:
                FAULTS[self.kind][self.number]()
        return self.body(inputs)
'''
STEPS = 2
KINDS = ("exception", "base exception", "time-out", "memory", "killed")


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The module of the network, which other processes find."""
    folder: Path = tmp_path_factory.mktemp("faulty")
    (folder / "faulty_network.py").write_text(FAULTY)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        yield importlib.import_module("faulty_network")
        del sys.modules["faulty_network"]


def own_examples(number: int) -> tuple[Tensor, Tensor]:
    return torch.rand(number, 1, 2, 2, generator=torch.Generator().manual_seed(0)), torch.arange(number) % 3


def checked(model: Any, runner: InlineRunner | SubprocessRunner, seconds: float, examples: int = 8) -> GuardReport:
    """Check an update that is sound where nothing goes wrong; from 8 examples on the received model is run, too."""
    inputs, labels = own_examples(examples)
    kind, model.kind = model.kind, ""
    before = {name: tensor.detach().clone() for name, tensor in model.named_parameters()}
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(STEPS):
        optimiser.zero_grad()
        F.cross_entropy(model(inputs), labels).backward()  # type: ignore[no-untyped-call] # of torch
        optimiser.step()
    after = {name: tensor.detach().clone() for name, tensor in model.named_parameters()}
    model.kind = kind
    guard = Guard(runner=runner, budget_seconds=seconds, attacks={})
    return guard.check(
        model, before, after=after, examples=inputs, labels=labels, training=Training(lr=0.1, epochs=STEPS)
    )


def test_every_fault_in_the_process_of_the_checks_refuses(faulty: Any, caplog: pytest.LogCaptureFixture) -> None:
    runner = SubprocessRunner()
    assert checked(faulty.Faulty(), runner, 600.0).sound, "nothing but the fault refuses"
    refused = dict.fromkeys(KINDS, 0)
    for kind in KINDS:
        for number in range(len(faulty.FAULTS[kind])):
            model = faulty.Faulty()
            # In the first pass of the checks, or in a later one; the first are those of the received model.
            model.kind, model.number, model.passes = kind, number, number % STEPS
            report = checked(model, runner, 1.0 if kind == "time-out" else 600.0, examples=3 if number % 4 == 3 else 8)
            assert report.reasons == ((Reason.OUT_OF_TIME if kind == "time-out" else Reason.FAULT),), (kind, number)
            refused[kind] += not report.allowed
            assert report.answer == REFUSED
    assert refused == dict.fromkeys(KINDS, 8)
    assert faulty.SECRET not in caplog.text


def test_every_fault_in_the_check_of_a_received_model_refuses(faulty: Any, caplog: pytest.LogCaptureFixture) -> None:
    inputs, labels = own_examples(8)
    for kind in KINDS:
        for number in (1, 5):
            model = faulty.Faulty()
            state, model.kind, model.number = model.state_dict(), kind, number
            guard = Guard(budget_seconds=1.0 if kind == "time-out" else 600.0)
            report = guard.check_received(state, model=model, inputs=inputs, labels=labels)
            assert report.reasons == ((Reason.OUT_OF_TIME if kind == "time-out" else Reason.FAULT),), (kind, number)
            assert (report.allowed, report.answer) == (False, REFUSED)
    assert faulty.SECRET not in caplog.text


def test_every_exception_in_this_process_refuses(faulty: Any) -> None:
    for number in range(len(faulty.FAULTS["exception"])):
        model = faulty.Faulty()
        model.kind, model.number = "exception", number
        report = checked(model, InlineRunner(), 600.0)
        assert report.reasons == (Reason.FAULT,)
        assert not report.allowed
        assert faulty.SECRET in report.examined.fault, "the client's own report says what was wrong"
