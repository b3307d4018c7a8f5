"""Measures what the guard stops and what it costs, on updates whose danger is known without it.

`python tools/measure_guard.py lines.jsonl` writes a line for each update, and prints the table of docs/guard.md.
Leaking: an attack that the guard does not play recovers an image (PSNR above 20 dB). Harmless: differential privacy
bounds what anybody can tell. Open: that attack recovers nothing, which does not show that nothing leaks.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fedglass import Training, build, load, recipe
from fedglass.attack.best_of import AnyAttack
from fedglass.attack.labels.given import OracleLabels
from fedglass.audit.target import Target
from fedglass.core.rng import stream
from fedglass.defend.dpsgd import DPSGD
from fedglass.fl.local import schedule, train
from fedglass.fl.release import Outgoing
from fedglass.guard import Guard
from fedglass.guard.checks import one_run
from fedglass.guard.outbound import Outbound, Protected
from fedglass.guard.report import Clock
from fedglass.guard.runners import InlineRunner
from fedglass.models.network import Network
from fedglass.verdict.gate import Gate

SIDE = 16
PHOTOS = load("photos", size=SIDE)
STEP = Training(lr=0.1)
LONG = Training(lr=0.05, epochs=5, batch_size=8)
SHORT = Training(lr=0.05, epochs=2, batch_size=4)
NOTHING = Protected()
CLIPPED = Protected(clip=1.0, noise_multiplier=10.0)
WEAK = Protected(clip=1.0, noise_multiplier=0.3)
PRIVATE = Protected(dpsgd=DPSGD(clip=1.0, noise_multiplier=20.0))


@dataclass(frozen=True)
class Kind:
    """Updates of one kind."""

    name: str
    count: int
    examples: tuple[int, ...]
    training: Training
    declared: Protected = NOTHING
    done: Protected | None = None
    """What was done in place of what is declared."""
    forgets: str = ""
    """A tensor that the defence leaves out."""
    what: str = ""
    """What its updates are by construction; where it is empty, another attack decides."""


HARMLESS, WRONG, BETWEEN = "harmless by their bound", "not as declared", "in between"
KINDS = (
    Kind("no defence, one step of 1, 2 or 4 images", 54, (1, 2, 4), STEP),
    Kind("update clipped to 1, noise of 10 times that", 26, (2,), STEP, CLIPPED, what=HARMLESS),
    Kind("DP-SGD, clip 1, noise multiplier 20, 4 steps", 26, (8,), SHORT, PRIVATE, what=HARMLESS),
    Kind("declared noise missing", 10, (2,), STEP, CLIPPED, Protected(clip=1.0), what=WRONG),
    Kind("declared noise halved", 10, (2,), STEP, CLIPPED, replace(CLIPPED, noise_multiplier=5.0), what=WRONG),
    Kind("declared noise missing in one bias", 10, (2,), STEP, CLIPPED, forgets="fc3.bias", what=WRONG),
    Kind("no defence, 15 steps over 24 images", 10, (24,), LONG),
    Kind("update clipped to 1, noise of 0.3 times that", 10, (2,), STEP, WEAK, what=BETWEEN),
)


def updates(kind: Kind) -> Iterator[tuple[Outbound, float]]:
    """The updates of a kind, with the CPU seconds of their training."""
    for index in range(kind.count):
        n, draws = kind.examples[index % len(kind.examples)], stream(index, kind.name)
        order = torch.randperm(len(PHOTOS.labels), generator=draws)
        rows, rest = order[:n], order[n:]
        with torch.random.fork_rng():
            torch.manual_seed(index)
            model = build("lenet_tanh", shape=(3, SIDE, SIDE), classes=10)
        inputs, labels = PHOTOS.whitening.whiten(PHOTOS.images), PHOTOS.labels
        start = time.process_time()
        after, batches = trained(kind, model, inputs[rows], labels[rows], index)
        spent = time.process_time() - start
        before = {name: t.detach().clone() for name, t in model.named_parameters()}
        others = inputs[rest] if len(rest) else None
        yield (
            Outbound(
                model, before, after, inputs[rows], labels[rows], kind.training, batches, PHOTOS.whitening, others
            ),
            spent,
        )


def trained(
    kind: Kind, model: nn.Module, inputs: Tensor, labels: Tensor, seed: int
) -> tuple[dict[str, Tensor], tuple[tuple[int, ...], ...]]:
    """What a client would send, and the order of its examples."""
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


def independent(kind: Kind) -> AnyAttack:
    """An attack that the guard does not play."""
    if kind.training.epochs == 1:
        return recipe("coarse_to_fine", labels=OracleLabels(), iterations=200)
    return recipe("dlfa", labels=OracleLabels())


def line(kind: Kind, out: Outbound, spent: float) -> dict[str, Any]:
    told: dict[str, Any] = {"kind": kind.name, "examples": len(out.labels), "training": spent}
    if not kind.what:
        seen = out.observation()
        found = one_run(independent(kind), Target(seen, out.truth()), Gate(), 1, Clock(1e6))
        told |= {"recovered": any(Gate().hits(found.scores))}
    for name, options in (("guard", {}), ("attack alone", {"false_alarms": 0.0})):
        if options and told["guard"]["reasons"] != ["singled out"]:
            told[name] = told["guard"]  # it came to the same attack, or did not get that far
            continue
        declared = kind.declared
        guard = Guard(
            min_examples=1,
            budget_seconds=1e6,
            starts=1,
            clip=declared.clip,
            noise_multiplier=declared.noise_multiplier,
            dpsgd=declared.dpsgd,
            whitening=PHOTOS.whitening,
            runner=InlineRunner(),
            **options,  # type: ignore[arg-type] # one float
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
        told[name] = {"reasons": [r.value for r in report.reasons], "seconds": time.process_time() - start}
        told[name] |= {"p": report.examined.p_value, "best": report.examined.best, "fault": report.examined.fault}
    return told


def table(lines: list[dict[str, Any]]) -> Iterator[str]:
    yield "| updates | they are | number | stopped | stopped by the attack alone | guard, CPU s | training, CPU s |"
    yield "|---|---|---|---|---|---|---|"
    for kind in KINDS:
        mine = [each for each in lines if each["kind"] == kind.name]
        groups = {kind.what: mine}
        if not kind.what:
            groups = {
                "leaking": [each for each in mine if each["recovered"]],
                "open": [each for each in mine if not each["recovered"]],
            }
        for what, some in groups.items():
            if some:
                stops = [sum(bool(each[way]["reasons"]) for each in some) for way in ("guard", "attack alone")]
                cost = [statistics.median(each[way]["seconds"] for each in some) for way in ("guard", "attack alone")]
                train_cost = statistics.median(each["training"] for each in some)
                yield (
                    f"| {kind.name} | {what} | {len(some)} | {stops[0]} | {stops[1]} | {cost[0]:.1f} / {cost[1]:.1f} "
                    f"| {train_cost:.2f} |"
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
    print("\n".join(table(lines)))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
