"""Measures what the guard stops, by which check and at what cost, on updates whose danger is known without it.

`FEDGLASS_SHARED=... python tools/measure_guard.py lines.jsonl` writes a line for each update, and prints the table of
docs/guard.md. It needs `cifar10_10k.npz`. Leaking: an attack that the guard does not play, or exact methods with half a
minute each, recover an image (PSNR above 20 dB). Harmless: differential privacy bounds what anybody can tell. Open:
those attacks recover nothing, which does not show that nothing leaks.
"""

from __future__ import annotations

import functools
import json
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from shared_data import data_folder
from torch import Tensor, nn
from torch.nn import functional as F

from fedglass import Training, build, load, recipe
from fedglass.attack.labels.given import OracleLabels
from fedglass.audit.target import Target
from fedglass.core.optimisers import SGD
from fedglass.core.rng import stream
from fedglass.data.dataset import Dataset
from fedglass.defend.dpsgd import DPSGD
from fedglass.fl.local import schedule, train
from fedglass.fl.release import Outgoing
from fedglass.guard import Guard
from fedglass.guard.checks import EXACT, one_run
from fedglass.guard.outbound import Outbound, Protected
from fedglass.guard.report import Clock
from fedglass.guard.runners import InlineRunner
from fedglass.models.network import Network
from fedglass.verdict.gate import Gate

SIDE, CLASSES = 16, 10
SHAPE = (3, SIDE, SIDE)
OTHERS = 1000
"""Pictures that the client did not train on, at most."""
STEP = Training(lr=0.1)
LATE = Training(lr=0.01)
ALONE = Training(lr=0.1, epochs=20, optimiser=SGD(momentum=0.9))
LONG = Training(lr=0.05, epochs=5, batch_size=8)
SHORT = Training(lr=0.05, epochs=2, batch_size=4)
NOTHING = Protected()
CLIPPED = Protected(clip=1.0, noise_multiplier=10.0)
WEAK = Protected(clip=1.0, noise_multiplier=0.3)
PRIVATE = Protected(dpsgd=DPSGD(clip=1.0, noise_multiplier=20.0))


@functools.cache
def photos() -> Dataset:
    return load("photos", size=SIDE)


@functools.cache
def cifar() -> Dataset:
    return load(f"npz:{data_folder() / 'cifar10_10k.npz'}", size=SIDE)


def dense(width: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * SIDE * SIDE, width), nn.ReLU(), nn.Linear(width, CLASSES))


def lenet_tanh() -> nn.Module:
    return build("lenet_tanh", shape=SHAPE, classes=CLASSES)


def lenet5() -> nn.Module:
    return build("lenet5", shape=SHAPE, classes=CLASSES)


def convolutions() -> nn.Module:
    """Three convolutions with ReLU, and a dense layer behind them."""
    sizes = ((3, 32, 1), (32, 32, 2), (32, 64, 2))
    layers = [(nn.Conv2d(a, b, 3, stride=stride, padding=1), nn.ReLU()) for a, b, stride in sizes]
    head = (nn.Flatten(), nn.Linear(64 * (SIDE // 4) ** 2, 128), nn.ReLU(), nn.Linear(128, CLASSES))
    return nn.Sequential(*(part for pair in layers for part in pair), *head)


@functools.cache
def trained_lenet5() -> nn.Module:
    """Return LeNet-5 after thirty epochs on CIFAR-10."""
    torch.manual_seed(0)
    model, data = lenet5(), cifar()
    inputs = data.whitening.whiten(data.images)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for _ in range(30):
        for rows in torch.randperm(len(inputs)).split(64):  # type: ignore[no-untyped-call] # of torch
            optimiser.zero_grad()
            F.cross_entropy(model(inputs[rows]), data.labels[rows]).backward()  # type: ignore[no-untyped-call]
            optimiser.step()
    return model


@dataclass(frozen=True)
class Kind:
    """Updates of one kind."""

    name: str
    count: int
    network: Callable[[], nn.Module]
    data: Callable[[], Dataset]
    examples: tuple[int, ...]
    training: Training = STEP
    declared: Protected = NOTHING
    done: Protected | None = None
    """What was done in place of what is declared."""
    forgets: str = ""
    """A tensor that the defence leaves out."""
    what: str = ""
    """What its updates are by construction; where it is empty, other attacks decide."""


HARMLESS, WRONG, BETWEEN = "harmless by their bound", "not as declared", "in between"
DEFENDED: dict[str, Any] = {"network": lenet_tanh, "data": photos, "examples": (2,)}
KINDS = (
    Kind("tanh LeNet, one step, 1, 2 or 4 photographs", 18, lenet_tanh, photos, (1, 2, 4)),
    Kind("dense ReLU, 256 units, 20 steps with momentum, 1 picture", 10, lambda: dense(256), cifar, (1,), ALONE),
    Kind("dense ReLU, 1,000 units, one step, 8 pictures", 10, lambda: dense(1000), cifar, (8,)),
    Kind("dense ReLU, 100 units, one step, 6 pictures", 8, lambda: dense(100), cifar, (6,)),
    Kind("dense ReLU, 64 units, one step, 12 pictures", 8, lambda: dense(64), cifar, (12,)),
    Kind("3 ReLU convolutions, one step, 8 pictures", 10, convolutions, cifar, (8,)),
    Kind("update clipped to 1, noise of 10 times that", 16, declared=CLIPPED, what=HARMLESS, **DEFENDED),
    Kind("DP-SGD, clip 1, noise multiplier 20, 4 steps", 10, lenet_tanh, photos, (8,), SHORT, PRIVATE, what=HARMLESS),
    Kind("ReLU LeNet after 30 epochs, one step, 32 pictures", 16, trained_lenet5, cifar, (32,), LATE),
    Kind("fresh ReLU LeNet, one step, 64, 96 or 128 pictures", 17, lenet5, cifar, (64, 96, 128)),
    Kind("declared noise missing", 10, declared=CLIPPED, done=Protected(clip=1.0), what=WRONG, **DEFENDED),
    Kind("declared noise halved", 10, declared=CLIPPED, done=Protected(1.0, 5.0), what=WRONG, **DEFENDED),
    Kind("declared noise missing in one bias", 10, declared=CLIPPED, forgets="fc3.bias", what=WRONG, **DEFENDED),
    Kind("update clipped to 1, noise of 0.3 times that", 10, declared=WEAK, what=BETWEEN, **DEFENDED),
    Kind("tanh LeNet, 15 steps over 24 pictures", 10, lenet_tanh, cifar, (24,), LONG),
)


def updates(kind: Kind) -> Iterator[tuple[Outbound, float]]:
    """Yield the updates of a kind, with the CPU seconds of their training."""
    data = kind.data()
    inputs = data.whitening.whiten(data.images)
    for index in range(kind.count):
        n, draws = kind.examples[index % len(kind.examples)], stream(index, kind.name)
        order = torch.randperm(len(data.labels), generator=draws)
        rows, rest = order[:n], order[n : n + OTHERS]
        with torch.random.fork_rng():
            torch.manual_seed(index)
            model = kind.network()
        start = time.process_time()
        after, batches = trained(kind, model, inputs[rows], data.labels[rows], index)
        spent = time.process_time() - start
        before = {name: t.detach().clone() for name, t in model.named_parameters()}
        told = inputs[rows], data.labels[rows], kind.training, batches, data.whitening, inputs[rest]
        yield Outbound(model, before, after, *told), spent


def trained(
    kind: Kind, model: nn.Module, inputs: Tensor, labels: Tensor, seed: int
) -> tuple[dict[str, Tensor], tuple[tuple[int, ...], ...]]:
    """Return what a client would send, and the order of its examples."""
    done, training = kind.done or kind.declared, kind.training
    network = Network(model, {}, training.batch_norm)
    before = [p.detach() for p in model.parameters()]
    batches = list(schedule(training, len(labels), stream(seed, "order")))
    rule = done.dpsgd
    after = train(network, before, inputs, labels, batches, training, rule, stream(seed, "noise"))
    update = {name: a - b for name, a, b in zip(network.names, after, before, strict=True)}
    sent = dict(done.protection.release.release(Outgoing(update, stream(seed, "release"))))
    if kind.forgets:
        sent[kind.forgets] = done.noiseless.release.release(Outgoing(update, stream(seed, "release")))[kind.forgets]
    rows = tuple(tuple(torch.arange(len(labels))[batch.rows].tolist()) for batch in batches)
    return {name: b + sent[name] for name, b in zip(network.names, before, strict=True)}, rows


def recovered(kind: Kind, out: Outbound) -> dict[str, int]:
    """Return how many images attacks recover that the guard does not play, or not for so long."""
    search = (
        recipe("coarse_to_fine", labels=OracleLabels(), iterations=200)
        if len(out.batches or ()) == 1
        else recipe("dlfa", labels=OracleLabels())
    )
    target, found = Target(out.observation(), out.truth()), {}
    for name, attack in (("search", search), ("exact", recipe("exact"))):
        assessment = one_run(attack, target, Gate(), 1, Clock(1e6))
        found[name] = 0 if assessment is None else sum(Gate().hits(assessment.scores))
    return found


def checked(kind: Kind, out: Outbound, **options: Any) -> dict[str, Any]:
    """Return what the guard says of an update, and its CPU seconds."""
    declared = kind.declared
    guard = Guard(
        min_examples=1,
        budget_seconds=1e6,
        clip=declared.clip,
        noise_multiplier=declared.noise_multiplier,
        dpsgd=declared.dpsgd,
        whitening=out.whitening,
        runner=InlineRunner(),
        **options,
    )
    start = time.process_time()
    report = guard.check(
        out.model,
        out.before,
        after=out.after,
        examples=out.inputs,
        labels=out.labels,
        training=out.training,
        batches=out.batches,
        others=out.others,
    )
    told = {"reasons": [r.value for r in report.reasons], "seconds": time.process_time() - start}
    examined = report.examined
    return told | {
        name: getattr(examined, name) for name in ("attack", "shown", "best", "starts", "singled_out", "fault")
    }


def line(kind: Kind, out: Outbound, spent: float) -> dict[str, Any]:
    told: dict[str, Any] = {"kind": kind.name, "examples": len(out.labels), "training": spent}
    if not kind.what:
        told["recovered"] = recovered(kind, out)
    told["guard"] = checked(kind, out)
    if not told["guard"]["reasons"]:
        told["game"] = checked(kind, out, level="singling_out", attacks={})
    return told


def check_of(told: dict[str, Any]) -> str:
    """Return which check stopped an update; empty where it left."""
    if not told["reasons"]:
        return ""
    (reason,) = told["reasons"]
    if reason != "recovered":
        return "other" if reason in ("fault", "out of time") else "replay"
    return "exact" if told["attack"] in EXACT else "search"


def group_of(kind: Kind, told: dict[str, Any]) -> str:
    if kind.what:
        return kind.what
    read = told["recovered"]
    names = " and ".join(name for name in ("exact", "search") if read[name])
    return f"leaking (read by {names})" if names else "open"


def table(lines: list[dict[str, Any]]) -> Iterator[str]:
    yield (
        "| updates | they are | number | stopped | by exact attacks | by replay or noise | by search | "
        "stopped by the game | guard, CPU s | game, CPU s | training, CPU s |"
    )
    yield "|---|---|---|---|---|---|---|---|---|---|---|"
    for kind in KINDS:
        mine = [each for each in lines if each["kind"] == kind.name]
        for what in sorted({group_of(kind, each) for each in mine}):
            yield row(kind.name, what, [each for each in mine if group_of(kind, each) == what])


def row(name: str, what: str, some: Sequence[dict[str, Any]]) -> str:
    by = Counter(check_of(each["guard"]) for each in some)
    games = [each["game"] for each in some if "game" in each]
    cells: list[Any] = [name, what, len(some), len(some) - by[""], by["exact"], by["replay"], by["search"]]
    cells += [sum(bool(game["reasons"]) for game in games) if games else "-"]
    cells += [f"{statistics.median(each['guard']['seconds'] for each in some):.2f}"]
    cells += [f"{statistics.median(game['seconds'] for game in games):.1f}" if games else "-"]
    cells += [f"{statistics.median(each['training'] for each in some):.3f}"]
    return f"| {' | '.join(map(str, cells))} |"


def targets(lines: list[dict[str, Any]]) -> Iterator[str]:
    """Yield the figures over all leaking updates, and over all that are harmless by their bound or open."""
    groups: dict[str, list[dict[str, Any]]] = {}
    kinds = {kind.name: kind for kind in KINDS}
    for each in lines:
        groups.setdefault(group_of(kinds[each["kind"]], each).split(" (")[0], []).append(each)
    for what, some in groups.items():
        seconds = [each["guard"]["seconds"] for each in some]
        stopped = sum(bool(each["guard"]["reasons"]) for each in some)
        yield (
            f"{what}: {stopped} of {len(some)} stopped, CPU s median {statistics.median(seconds):.2f}, "
            f"most {max(seconds):.1f}"
        )


def main(path: Path) -> None:
    torch.set_num_threads(1)
    lines = [json.loads(text) for text in path.read_text().splitlines()] if path.exists() else []
    for kind in KINDS:
        done = sum(each["kind"] == kind.name for each in lines)
        for index, (out, spent) in enumerate(updates(kind)):
            if index >= done:
                lines.append(line(kind, out, spent))
                with path.open("a") as file:
                    file.write(json.dumps(lines[-1]) + "\n")
    print("\n".join([*table(lines), *targets(lines)]))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
