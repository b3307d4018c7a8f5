"""`fedglass epsilon` of plans and of bundles, honest and broken."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import Result
from torch import Tensor

from fedglass.core.rng import stream
from fedglass.defend.filters import FlowerLocalDP
from fedglass.fl.canaries import LENGTH
from fedglass.fl.release import Outgoing
from fedglass.recordings import BundleWriter
from fedglass.recordings.privacy import CanaryKey, keys_folder, store_key

PLAN = """
[federation]
data = "photos"
size = 16
clients = 2
examples = 2
model = "lenet"
training.lr = 0.1
[[defences]]
name = "dpsgd"
clip = 1.0
noise_multiplier = 1.0
"""
DPSGD = 'name = "dpsgd"\nclip = 1.0\nnoise_multiplier = 1.0'
FLIP = 'name = "flower_local_dp"\nclipping_norm = 1.0\nsensitivity = 1e-4\nepsilon = 10.0\ndelta = 1e-5'
BEFORE = {"weight": torch.zeros(30, 40), "steps": torch.tensor(0)}
Run = Callable[..., Result]
Write = Callable[..., Path]


def test_a_plan_that_keeps_its_epsilon_is_consistent(fedglass: Run, write_plan: Write) -> None:
    answer = fedglass("epsilon", write_plan(text=PLAN), "--canaries", 300)

    assert answer.exit_code == 0, answer.output
    assert "client 0: 300 canaries" in answer.stdout
    assert "client 1" not in answer.stdout
    assert "accountant            4.38" in answer.stdout
    assert "Consistent" in answer.stdout


def test_a_plan_that_does_not_keep_it_ends_with_1(fedglass: Run, write_plan: Write) -> None:
    plan = write_plan((DPSGD, FLIP), text=PLAN)
    answer = fedglass("epsilon", plan, "--canaries", 150, "--json")
    found = json.loads(answer.stdout)

    assert answer.exit_code == found["exit_code"] == 1
    audit = found["audits"][0]
    assert audit["finding"] == "not as declared"
    assert audit["declared"] == 10 < audit["lower"] < audit["upper"]
    assert fedglass("epsilon", plan, "--canaries", 150, "-q").stdout == ""


def test_every_value_of_a_sweep_is_audited(fedglass: Run, write_plan: Write) -> None:
    sweep = 'training.lr = 0.1\nsweep = { defence = "dpsgd", option = "noise_multiplier", values = [1.0, 2.0] }'
    answer = fedglass("epsilon", write_plan(("training.lr = 0.1", sweep), text=PLAN), "--canaries", 50)

    assert "noise_multiplier = 1" in answer.stdout
    assert "noise_multiplier = 2" in answer.stdout


@pytest.mark.parametrize(
    ("changes", "options", "words"),
    [
        (((f"[[defences]]\n{DPSGD}", ""),), (), "No client of the plan has a defence"),
        ((), ("--canaries", 10_000_000), "take fewer canaries"),
        ((), ("--keys", "somewhere"), "--keys is for a bundle"),
    ],
)
def test_refusals_of_plans_are_one_sentence(
    fedglass: Run, write_plan: Write, changes: tuple[Any, ...], options: tuple[Any, ...], words: str
) -> None:
    answer = fedglass("epsilon", write_plan(*changes, text=PLAN), *options)

    assert answer.exit_code == 2
    assert words in answer.stderr
    assert len(answer.stderr.strip().splitlines()) == 1


def record(folder: Path, mod: FlowerLocalDP, declared: FlowerLocalDP, messages: int, per_message: int) -> None:
    """Write a bundle as the recorders do: canaries before the mod, and what it says of itself."""
    for index in range(messages):
        writer = BundleWriter(folder, resume=True)
        key = CanaryKey.drawn(per_message, "update").model_copy(
            update={"names": ["weight"], "seed": f"{index + 1:032x}"}
        )
        coins = key.canaries.coins()
        length = LENGTH * mod.clipping_norm / max(1, int(coins.sum())) ** 0.5
        update: dict[str, Tensor] = key.canaries.total({"weight": BEFORE["weight"]}, coins * length)
        sent = mod.release(Outgoing(update, stream(index, "noise")))
        writer.round(index).sent(BEFORE)
        options = {name: getattr(declared, name) for name in ("clipping_norm", "sensitivity", "epsilon", "delta")}
        writer.round(index).received("a", {**BEFORE, **sent})
        writer.training("a", index, {"defences": [{"name": "flower_local_dp", "options": options}]}, source="read")
        store_key(writer, keys_folder(folder) / "a.json", "a", index, key)


HONEST = FlowerLocalDP(clipping_norm=1.0, sensitivity=1.0, epsilon=8.0, delta=1e-5)
BROKEN = FlowerLocalDP(clipping_norm=1.0, sensitivity=1e-4, epsilon=10.0, delta=1e-5)


def test_an_honest_bundle_is_consistent(fedglass: Run, tmp_path: Path) -> None:
    record(tmp_path / "bundle", HONEST, HONEST, messages=10, per_message=6)
    answer = fedglass("epsilon", tmp_path / "bundle", "--json")
    audit = json.loads(answer.stdout)["audits"][0]

    assert answer.exit_code == 0, answer.output
    assert audit["canaries"] == 60
    assert 0 <= audit["lower"] < 8 == audit["declared"]


def test_a_mod_without_enough_noise_is_refuted_from_few_messages(fedglass: Run, tmp_path: Path) -> None:
    record(tmp_path / "bundle", BROKEN, BROKEN, messages=2, per_message=200)
    answer = fedglass("epsilon", tmp_path / "bundle")

    assert answer.exit_code == 1
    assert "a, 2 messages: 400 canaries" in answer.stdout
    assert "10 is declared" in answer.stdout


def test_noise_that_is_declared_and_left_out_is_refuted(fedglass: Run, tmp_path: Path) -> None:
    silent = FlowerLocalDP(clipping_norm=1.0, sensitivity=0.0, epsilon=8.0, delta=1e-5)
    record(tmp_path / "bundle", silent, HONEST, messages=2, per_message=200)

    assert fedglass("epsilon", tmp_path / "bundle", "--keys", tmp_path / "bundle-canaries").exit_code == 1


def test_keys_must_be_those_of_the_recording(fedglass: Run, tmp_path: Path) -> None:
    record(tmp_path / "bundle", HONEST, HONEST, messages=1, per_message=10)
    path = tmp_path / "bundle-canaries" / "a.json"
    keys = json.loads(path.read_text())
    for change, words in (({"seed": "0" * 32}, "not the one of the recording"), ({"seed": 5}, "not a file of")):
        changed = {"0": {**keys["rounds"]["0"], **change}}
        path.write_text(json.dumps({**keys, "rounds": changed}))
        answer = fedglass("epsilon", tmp_path / "bundle")
        assert answer.exit_code != 0
        assert words in answer.stderr
    path.unlink()
    assert "lacks the key" in fedglass("epsilon", tmp_path / "bundle").stderr
    path.parent.rmdir()
    assert "name it with --keys" in fedglass("epsilon", tmp_path / "bundle").stderr


def test_a_bundle_without_canaries_is_refused_in_one_sentence(fedglass: Run, tmp_path: Path) -> None:
    writer = BundleWriter(tmp_path / "bundle")
    writer.round(0).sent(BEFORE)
    answer = fedglass("epsilon", tmp_path / "bundle")

    assert answer.exit_code == 2
    assert "holds no canaries" in answer.stderr
    assert "only DP-SGD by Opacus and Flower's local noise take them" in " ".join(answer.stderr.split())
    assert len(answer.stderr.strip().splitlines()) == 1
    assert "--canaries is for a plan" in fedglass("epsilon", tmp_path / "bundle", "--canaries", 5).stderr


def test_a_bundle_tells_neither_coins_nor_directions(tmp_path: Path) -> None:
    record(tmp_path / "bundle", HONEST, HONEST, messages=1, per_message=10)
    seed = json.loads((tmp_path / "bundle-canaries" / "a.json").read_text())["rounds"]["0"]["seed"]

    assert all(seed.encode() not in path.read_bytes() for path in (tmp_path / "bundle").iterdir())
