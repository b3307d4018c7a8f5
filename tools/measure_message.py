"""Measures what the guard's message costs in accuracy: MNIST, with the apps' own updates and with the guards' messages.

`FEDGLASS_SHARED=... python tools/measure_message.py lines.jsonl` writes a line for each federation, and prints the
table of docs/guard.md. It needs `mnist_10k.npz`. Both federations of a pair begin with the same weights and take the
same batches. Attacks and decoys are switched off: they decide whether a message leaves, and not what it holds.
"""

from __future__ import annotations

import itertools
import json
import math
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from shared_data import data_folder
from torch import Tensor, nn
from torch.nn import functional as F

from fedglass.core.rng import stream
from fedglass.core.tensors import Params
from fedglass.defend.noise import Clip, GaussianNoise
from fedglass.fl.release import Outgoing
from fedglass.guard import Guard
from fedglass.guard.message import rounded
from fedglass.guard.report import GuardMemory
from fedglass.guard.runners import InlineRunner

CLIENTS, EXAMPLES, ROUNDS, BATCH, LR = 5, 400, 20, 32, 0.05
SEEDS = 10
State = dict[str, Tensor]


@dataclass(frozen=True)
class Kind:
    """Federations of one kind."""

    name: str
    normalised: bool = False
    clip: float | None = None
    noise_multiplier: float = 0.0


KINDS = (
    Kind("no defence"),
    Kind("no defence, batch normalisation", normalised=True),
    Kind("clipped to 2, noise of 0.003 times that", clip=2.0, noise_multiplier=0.003),
)


def network(kind: Kind, seed: int) -> nn.Module:
    norm = [nn.BatchNorm2d(8)] if kind.normalised else []
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Conv2d(1, 8, 5, stride=2), *norm, nn.ReLU(), nn.Conv2d(8, 16, 5, stride=2), nn.ReLU(), nn.Flatten(),
            nn.Linear(256, 10),
        )  # fmt: skip


def trained(model: nn.Module, start: State, images: Tensor, labels: Tensor, draws: torch.Generator) -> None:
    """Train for an epoch, as an app does."""
    model.load_state_dict(start)
    model.train()
    optimiser = torch.optim.SGD(model.parameters(), lr=LR, momentum=0.9)
    for rows in torch.randperm(len(labels), generator=draws).split(BATCH):  # type: ignore[no-untyped-call] # of torch
        optimiser.zero_grad()
        F.cross_entropy(model(images[rows]), labels[rows]).backward()  # type: ignore[no-untyped-call] # of torch
        optimiser.step()


def defended(kind: Kind, start: State, after: State, draws: torch.Generator) -> State:
    """Clip and add noise, as an app does."""
    if kind.clip is None:
        return after
    update = Clip(kind.clip).release(Outgoing({name: after[name] - t for name, t in start.items()}, draws))
    noisy = GaussianNoise(kind.clip * kind.noise_multiplier).release(Outgoing(update, draws))
    return {name: start[name] + t for name, t in noisy.items()}


def bits(change: Params) -> float:
    """Return how many bits a weight holds on average, at most, after rounding."""
    change = {name: rounded(tensor) for name, tensor in change.items()}
    steps = {name: float(t.abs().max() / t[t != 0].abs().min()) for name, t in change.items() if bool(t.any())}
    entries = {name: change[name].numel() for name in steps}
    return sum(n * math.log2(1 + 2 * steps[name]) for name, n in entries.items()) / sum(entries.values())


def accuracies(kind: Kind, seed: int, guarded: bool, data: dict[str, Tensor]) -> Iterator[tuple[float, float]]:
    """Yield, after each round, the accuracy of the global model on test images and the bits of a message."""
    model = network(kind, seed)
    options: dict[str, Any] = {"clip": kind.clip, "noise_multiplier": kind.noise_multiplier, "attacks": {}}
    guards = [
        Guard(false_alarms=0, budget_seconds=1e6, runner=InlineRunner(), memory=GuardMemory(), **options)
        for _ in range(CLIENTS)
    ]
    start = {name: t.clone() for name, t in model.state_dict().items()}
    for round_ in range(ROUNDS):
        messages, held = [], 32.0
        for client, guard in enumerate(guards):
            rows, draws = slice(client * EXAMPLES, (client + 1) * EXAMPLES), stream(seed, "client", client, round_)
            with guard.watch() as reader:
                trained(model, start, data["images"][rows], data["labels"][rows], draws)
            after = defended(kind, start, {name: t.clone() for name, t in model.state_dict().items()}, draws)
            if guarded:
                report = guard.check_watched(reader, start, after=after)
                report.enforce()
                assert report.message is not None
                assert report.examined.change is not None
                after, held = dict(report.message), bits(report.examined.change)
            messages.append(after)
        start = {
            name: torch.stack([m[name].double() for m in messages]).mean(0).to(t.dtype) for name, t in start.items()
        }
        model.load_state_dict(start)
        with torch.no_grad():
            right = model.eval()(data["test_images"]).argmax(1) == data["test_labels"]
        yield float(right.double().mean()), held


def mnist(path: Path) -> dict[str, Tensor]:
    with np.load(path) as arrays:
        order = torch.randperm(len(arrays["train_labels"]), generator=stream(0, "clients"))[: CLIENTS * EXAMPLES]
        images, labels = (torch.as_tensor(arrays[f"train_{name}"])[order] for name in ("images", "labels"))
        tests = {f"test_{name}": torch.as_tensor(arrays[f"test_{name}"]) for name in ("images", "labels")}
    pixels = {"images": images, "test_images": tests["test_images"]}
    return {"labels": labels, "test_labels": tests["test_labels"]} | {
        name: t.float().view(-1, 1, 28, 28) / 255 for name, t in pixels.items()
    }


def table(lines: list[dict[str, Any]]) -> Iterator[str]:
    yield "| clients | apps' own updates | guards' messages | difference, points | bits for each weight, at most |"
    yield "|---|---|---|---|---|"
    for kind in KINDS:
        own, message = (
            [each for each in lines if (each["kind"], each["guarded"]) == (kind.name, guarded)]
            for guarded in (False, True)
        )
        means = [f"{100 * np.mean([each['accuracy'] for each in some]):.1f}" for some in (own, message)]
        apart = [100 * (b["accuracy"] - a["accuracy"]) for a, b in zip(own, message, strict=True)]
        error = np.std(apart, ddof=1) / math.sqrt(len(apart))
        held = "-" if kind.noise_multiplier else f"{np.mean([each['bits'] for each in message]):.1f}"
        yield (
            f"| {kind.name} | {means[0]} | {means[1]} | {np.mean(apart):+.2f} ± {error:.2f}, "
            f"{min(apart):+.2f} to {max(apart):+.2f} | {held} |"
        )


def main(path: Path) -> None:
    torch.set_num_threads(1)
    data = mnist(data_folder() / "mnist_10k.npz")
    lines = [json.loads(text) for text in path.read_text().splitlines()] if path.exists() else []
    for seed, kind, guarded in itertools.product(range(SEEDS), KINDS, (False, True)):
        told = {"kind": kind.name, "seed": seed, "guarded": guarded}
        if any(told.items() <= line.items() for line in lines):
            continue
        start = time.process_time()
        *_, (last, held) = accuracies(kind, seed, guarded, data)
        lines.append({**told, "accuracy": last, "bits": held, "seconds": time.process_time() - start})
        with path.open("a") as file:
            file.write(json.dumps(lines[-1]) + "\n")
    print("\n".join(table(lines)))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
