"""Time to a verdict: the demo, a recorded message of a LeNet, and a recorded federation of 3 clients with 32 images."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

import fedglass

CIFAR = Path(__file__).resolve().parents[2] / "shared" / "data" / "cifar10_10k.npz"
MEAN, STD = (0.5, 0.5, 0.5), (0.25, 0.25, 0.25)
CLIENTS, EXAMPLES, EPOCHS, BATCH = 3, 32, 2, 16


class Net(nn.Module):
    """A small convolutional network with batch normalisation."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            *(nn.Conv2d(3, 16, 3, stride=2, padding=1), nn.BatchNorm2d(16), nn.ReLU()),
            *(nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.BatchNorm2d(32), nn.ReLU()),
        )
        self.classifier = nn.Sequential(nn.Flatten(), nn.Linear(2048, 64), nn.ReLU(), nn.Linear(64, 10))

    def forward(self, images: Tensor) -> Tensor:
        found: Tensor = self.classifier(self.features(images))
        return found


def measure() -> Iterator[tuple[str, str, str]]:
    with tempfile.TemporaryDirectory() as folder:
        yield row("demo", "at most 15 s", ["demo", "-o", f"{folder}/demo"], Path(folder, "demo"))
        record(Path(folder, "lenet"), "lenet", photos(), clients=1, steps=1)
        yield audited(Path(folder, "lenet"), "one photo, LeNet", "at most 10 s", "lenet")
        what = f"{CLIENTS} x {EXAMPLES} CIFAR images, BatchNorm, momentum"
        if not CIFAR.is_file():
            yield what, "not measured: no CIFAR-10 beside the project", "at most 2 min"
            return
        with np.load(CIFAR, allow_pickle=False) as data:
            images, labels = data["train_images"], torch.from_numpy(data["train_labels"])
        pixels = torch.from_numpy(images).permute(0, 3, 1, 2) / 255
        rows = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
        private, public = rows[: CLIENTS * EXAMPLES], rows[CLIENTS * EXAMPLES :]
        np.savez(Path(folder, "public.npz"), images=images[public.numpy()], labels=labels[public].numpy())
        record(Path(folder, "cifar"), f"{__name__}:Net", (pixels[private], labels[private]), clients=CLIENTS, steps=0)
        given = ["--public", f"{folder}/public.npz"]
        yield audited(Path(folder, "cifar"), what, "at most 2 min, LEAK or EXPOSED", f"{__name__}:Net", *given)


def photos() -> tuple[Tensor, Tensor]:
    data = fedglass.load("photos", size=32)
    return data.images[:1], data.labels[:1]


def record(folder: Path, model: str, examples: tuple[Tensor, Tensor], clients: int, steps: int) -> None:
    """Record one round; `steps` full batches, or epochs of small ones with momentum."""
    torch.manual_seed(0)
    net = Net() if ":" in model else fedglass.build(model, shape=(3, 32, 32), classes=10)
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (MEAN, STD))
    shares = [rows.chunk(clients) for rows in examples]
    for client, (images, labels) in enumerate(zip(*shares, strict=True)):
        own = copy.deepcopy(net).train()
        name = f"client-{client}"
        with fedglass.recording(str(folder), own, client=name, round=1, truth=True, whitening=(MEAN, STD)):
            optimiser = torch.optim.SGD(own.parameters(), lr=0.05, momentum=0.0 if steps else 0.9)
            order = [torch.arange(len(labels))] * steps or [
                batch for _ in range(EPOCHS) for batch in torch.randperm(len(labels)).split(BATCH)
            ]
            for batch in order:
                optimiser.zero_grad()
                nn.functional.cross_entropy(own((images[batch] - mean) / std), labels[batch]).backward()
                optimiser.step()


def audited(bundle: Path, what: str, bar: str, model: str, *given: str) -> tuple[str, str, str]:
    """A row: the audit of a recorded folder."""
    out = bundle.with_name(f"{bundle.name}-out")
    return row(what, bar, ["audit", str(bundle), "-o", str(out), "--model", model, "--code", ".", *given], out)


def row(what: str, bar: str, command: list[str], out: Path) -> tuple[str, str, str]:
    """A row: a command's time, and its verdict."""
    start = time.perf_counter()
    ran = subprocess.run([sys.executable, "-m", "fedglass", *command], capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - start
    summary = next(iter(sorted(out.rglob("summary.json"))), None)
    state = json.loads(summary.read_text())["verdict"]["state"] if summary else ran.stderr.strip()[-200:]
    return f"{what}: time to a verdict", f"{seconds:.0f} s, {state}, exit {ran.returncode}", bar
