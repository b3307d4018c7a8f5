"""Killed with SIGKILL at random moments, a command loses and repeats nothing that it has finished.

What it continues to is what it would have made undisturbed.

`make crash` asks for more kills: FEDGLASS_KILLS is their number for each command.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from fedglass.audit.target import AuditProgress
from fedglass.cli.main import cli
from fedglass.execution.executor import InProcess
from fedglass.recordings import BundleWriter, read_bundle
from fedglass.reproduce.campaign import Entry, PlannedRun, plan_campaign, run_campaign
from fedglass.reproduce.results import read_results
from fedglass.train import image_models
from fedglass.verdict.directory import RECORDS, RecordFile

KILLS = int(os.environ.get("FEDGLASS_KILLS", "3"))
Finished = dict[str, Any]

pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="Windows has neither fork nor SIGKILL"),
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
]


@dataclass(frozen=True)
class Command:
    """A command of a folder, and what it has finished there, by name; the last word is the whole result."""

    prepare: Callable[[Path], object]
    run: Callable[[Path], object]
    finished: Callable[[Path], Finished]
    result: Callable[[Path], Any]


def invoke(*words: object) -> None:
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere):
        cli([str(word) for word in words], standalone_mode=False)


def in_a_process(run: Callable[[Path], object], folder: Path, seconds: float | None = None) -> bool:
    """Run a command in a fork of this process; kill it after some seconds, and return whether it was still running."""
    process = multiprocessing.get_context("fork").Process(target=_quietly, args=(run, folder))
    process.start()
    process.join(seconds)
    killed = process.exitcode is None
    if killed:
        process.kill()
        process.join()
    return killed


def _quietly(run: Callable[[Path], object], folder: Path) -> None:
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 2)
        run(folder)


# A recorder.

ROUNDS = 12


def record(folder: Path) -> None:
    """Record the rounds that are not there yet, and finish one that was begun, as a server does after a restart."""
    writer = BundleWriter(folder / "b", writer="server", resume=True)
    for index in range(ROUNDS):
        turn = writer.round(index)
        if turn.state.sent is None:
            turn.sent({"w": torch.full((5000,), float(index))})
        for client in "ab":
            if turn.message(client).received is None:
                turn.received(client, {"w": torch.full((5000,), index + 1.0)}, examples=3)
        if turn.state.aggregated is None:
            turn.aggregated({"w": torch.full((5000,), index + 1.0)})
        with (folder / "finished").open("a") as file:
            file.write(f"{index}\n")


def whole_rounds(folder: Path) -> Finished:
    if not (folder / "finished").exists():
        return {}
    named = {int(line) for line in (folder / "finished").read_text().split()}
    rounds = read_bundle(folder / "b").rounds
    assert named <= set(rounds), "a finished round was lost"
    return {str(index): rounds[index] for index in named}


def bundle_content(folder: Path, name: str = "b") -> Any:
    bundle = read_bundle(folder / name)
    return {index: round_.model_dump() for index, round_ in bundle.rounds.items()}


# A joined bundle.


def two_bundles(folder: Path) -> None:
    for client in "xy":
        writer = BundleWriter(folder / client, writer=client)
        for index in range(8):
            writer.round(index).sent({"w": torch.full((2000,), float(index))})
            writer.round(index).received(client, {"w": torch.full((2000,), index + 1.0)}, examples=2)


def join(folder: Path) -> None:
    if not (folder / "all").exists():
        invoke("join", folder / "all", folder / "x", folder / "y")


def joined(folder: Path) -> Finished:
    return bundle_content(folder, "all") if (folder / "all").exists() else {}


# Records of cases: an audit, and a search for a defence.

AUDIT = """
[federation]
data = "photos"
size = 16
clients = 2
examples = 1
model = "lenet"
init = "uniform"
training.lr = 0.1
[adversary]
client = "all"
[[attacks]]
name = "inverting_gradients"
iterations = 3
[metrics]
names = ["psnr"]
"""
ADVICE = """
[federation]
data = "photos"
size = 12
examples = 2
test_examples = 4
model = "lenet_tanh"
training = { lr = 0.1, batch_size = 1 }
[advise]
strengths = 2
seeds = 2
[[advise.chain]]
defences = { name = "magnitude_pruning" }
[metrics]
names = ["psnr"]
[[attacks]]
name = "idlg"
iterations = 1
"""


def write_plan(folder: Path, text: str) -> None:
    (folder / "plan.toml").write_text(text)


def audit(folder: Path, command: str = "audit") -> None:
    invoke(command, folder / "plan.toml", "-o", folder / "out", "--workers", 1)


def records(folder: Path) -> Finished:
    """Return every finished record with its times: no case has two of them."""
    finished = {}
    for file in sorted((folder / "out").rglob(RECORDS)):
        for record in RecordFile(file).history():
            name = f"{file.relative_to(folder)}: {record.key}"
            assert name not in finished, "a case ran twice"
            finished[name] = record.model_dump()
    return finished


def timeless(folder: Path) -> Any:
    times = ("seconds", "peak_mib", "finished")
    return {key: {k: v for k, v in record.items() if k not in times} for key, record in records(folder).items()}


def advice(folder: Path) -> Any:
    found = json.loads((folder / "out" / "advice.json").read_text())
    return timeless(folder), {key: found[key] for key in ("recommended", "settings")}


# Lines of a campaign.


@cache
def planned_runs() -> list[PlannedRun]:
    ((_, runs),) = plan_campaign([Entry("dlfa-table2", "1", ("interpolated",), clients=6)], None, ["femnist=glyphs"], 0)
    return runs


def campaign(folder: Path) -> None:
    run_campaign(planned_runs(), folder / "out", folder / "results", InProcess(), 1, 1.0, AuditProgress())


def result_lines(folder: Path) -> Finished:
    lines = read_results(folder / "results")
    finished = {f"{line.row} {line.method} {line.client} {line.seed}": line.model_dump() for line in lines}
    assert len(finished) == len(lines), "a run has two lines"
    return finished


def measured(folder: Path) -> Any:
    lines = result_lines(folder).items()
    return {key: {k: v for k, v in line["metrics"].items() if k not in ("hours", "gigabytes")} for key, line in lines}


# Weights of a training.


def images(folder: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 255, (12, 8, 8, 3), dtype=np.uint8)
    np.savez(folder / "d.npz", images=pixels, labels=np.arange(12) % 3)


def train(folder: Path) -> None:
    invoke("train", "diffusion", f"npz:{folder / 'd.npz'}", "-o", folder / "m", "--steps", 60)


def weights(folder: Path) -> Any:
    return {
        name: tensor.tolist()
        for name, tensor in load_file(folder / "m" / "diffusion_pytorch_model.safetensors").items()
    }


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """A diffusion model that trains in no time, and stores its state often."""
    monkeypatch.setattr(image_models, "SIZES", {"small": ((8, 8), 1, 2), "medium": None, "large": None})
    monkeypatch.setattr("fedglass.diffusion.training.MOST_SECONDS_UNSAVED", 0.1)


def nothing(folder: Path) -> Finished:
    return {}


COMMANDS = {
    "audit": Command(lambda folder: write_plan(folder, AUDIT), audit, records, timeless),
    "advise": Command(lambda folder: write_plan(folder, ADVICE), lambda f: audit(f, "advise"), records, advice),
    "campaign": Command(lambda folder: planned_runs(), campaign, result_lines, measured),
    "train": Command(images, train, nothing, weights),
    "recorder": Command(lambda folder: None, record, whole_rounds, bundle_content),
    "join": Command(two_bundles, join, joined, joined),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_killed_command_continues_as_if_it_had_not_been_killed(name: str, tmp_path: Path) -> None:
    command, random = COMMANDS[name], Random(f"kills of {name}")
    whole = tmp_path / "whole"
    whole.mkdir()
    command.prepare(whole)
    begun = time.monotonic()
    in_a_process(command.run, whole)
    duration, expected = time.monotonic() - begun, command.result(whole)
    assert expected
    kills = attempts = 0
    while kills < KILLS:
        folder = tmp_path / "killed"
        folder.mkdir()
        command.prepare(folder)
        finished: Finished = {}
        for _ in range(1 + random.randrange(3)):  # some are killed again while they continue
            killed = in_a_process(command.run, folder, random.uniform(0, duration))
            kills, attempts = kills + killed, attempts + 1
            now = command.finished(folder)
            assert {key: now.get(key) for key in finished} == finished, "what was finished stays as it is"
            finished = now
        in_a_process(command.run, folder)
        assert command.result(folder) == expected
        now = command.finished(folder)
        assert {key: now.get(key) for key in finished} == finished
        shutil.rmtree(folder)
        assert attempts < 20 * KILLS, "the command ends before it can be killed"
    print(f"{name}: {kills} kills of {attempts} runs of {duration:.1f} s")  # noqa: T201 # shown with -s
