"""Rounds per minute of a simulated federation: one client after another, in worker processes, in Flower's simulation.

Flower is measured where it is installed (an environment with `flwr[simulation]`), on the same clients with the same
local training, in the same run.
"""

from __future__ import annotations

import importlib.util
import math
import os
import tempfile
import time
from pathlib import Path

import torch

from fedglass.core.rng import stream
from fedglass.core.tensors import Params
from fedglass.core.types import Training, Whitening
from fedglass.execution.executor import client_trainer
from fedglass.execution.processes import Processes
from fedglass.federation.client import Client, TrainClients, train_sequentially
from fedglass.federation.federation import Federation
from fedglass.models.catalogue import build

SIZES = {10: 40, 100: 8}
"""Clients, and the rounds of which the fastest counts: it is what a round costs when nothing else happens."""
EXAMPLES, SHAPE, CLASSES, WORKERS = 32, (3, 32, 32), 10, 2


def measure() -> list[tuple[str, str, str]]:
    rows = []
    for clients, rounds in SIZES.items():
        crowd, title = federation(clients), f"LeNet, {clients} clients of {EXAMPLES} examples, rounds per minute"
        with Processes(WORKERS).persistent() as team:
            alone, shared, last = per_minute(crowd, rounds, train_sequentially, client_trainer(team))
        rows.append((f"{title}: here", f"{alone:.0f}", ""))
        rows.append((f"{title}: {WORKERS} processes", f"{shared:.0f} ({shared / alone:.2f} x, same bits)", ""))
        if importlib.util.find_spec("flwr") is not None:
            flower, theirs = flower_per_minute(clients, rounds)
            far = max(float((last[name] - theirs[name]).abs().max()) for name in last)
            found = f"{flower:.0f} ({flower / shared:.2f} x of the above; weights differ by {far:.0e})"
            rows.append((f"{title}: Flower's simulation, {WORKERS} actors", found, ""))
    return rows


def federation(clients: int) -> Federation:
    training = Training(lr=0.05, epochs=1, batch_size=16)
    model = build("lenet", shape=SHAPE, classes=CLASSES)
    return Federation(model, [client(i) for i in range(clients)], training, CLASSES, Whitening((0.5,), (0.3,)))


def client(index: int) -> Client:
    generator = stream(0, "bench client", index)
    images = torch.rand(EXAMPLES, *SHAPE, generator=generator)
    return Client(f"client {index}", images, torch.randint(CLASSES, (EXAMPLES,), generator=generator))


def per_minute(crowd: Federation, rounds: int, *ways: TrainClients) -> tuple[float, float, Params]:
    """Rounds per minute after a first one, of two ways that take turns, and the weights at the end."""
    played = [crowd.play(rounds + 1, train_clients=answers) for answers in ways]
    fastest = [math.inf for _ in ways]
    for index in range(rounds + 1):
        weights = []
        for way, course in enumerate(played):
            began = time.perf_counter()
            weights.append(next(course).after)
            fastest[way] = min(fastest[way], time.perf_counter() - began) if index else math.inf
        first, *others = weights
        same = all(torch.equal(first[name], other[name]) for other in others for name in first)
        assert same, "who trains where must not matter"
    one, other = fastest
    return 60 / one, 60 / other, first


def flower_per_minute(clients: int, rounds: int) -> tuple[float, Params]:
    """The same of Flower, whose apps are in a module that its actors can import."""
    told = {"FLWR_TELEMETRY_ENABLED": "0", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "OMP_NUM_THREADS": "1"}
    os.environ.update(told)
    from bench.flower_apps import simulate

    with tempfile.TemporaryDirectory(prefix="flwr-") as place:
        os.environ.update({"RAY_TMPDIR": place, "FLWR_HOME": str(Path(place, "home"))})
        return simulate(clients, rounds, WORKERS)
