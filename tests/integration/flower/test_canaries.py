"""Canaries in a Flower client, before the framework's own LocalDpMod."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from flwr.clientapp.mod import LocalDpMod
from flwr.serverapp.strategy import FedAvg

from fedglass.cli.main import cli
from fedglass.fl.canaries import LENGTH
from fedglass.recorders.flower import recorded, recording_mod
from fedglass.recordings.facts import preferred
from fedglass.recordings.privacy import CANARIES, keys_folder
from fedglass.recordings.reader import read_bundle

ALL = {"min_available_nodes": 5, "min_train_nodes": 5, "fraction_train": 1.0, "fraction_evaluate": 0.0}
WHITENING = ((0.5,), (0.25,))
Make = Callable[..., Any]


def played(federation: Make, folder: Path, mods: list[Any], canaries: int, rounds: int = 2) -> Path:
    mod = recording_mod(folder / "clients", whitening=WHITENING, canaries=canaries)
    strategy = recorded(FedAvg(**ALL), folder / "bundle", clients=folder / "clients")
    federation([mod, *mods]).play(strategy, rounds=rounds)
    return folder / "bundle"


def audit(bundle: Path, *options: str) -> tuple[int, dict[str, Any]]:
    keys = str(keys_folder(bundle.parent / "clients"))
    answer = CliRunner().invoke(cli, ["epsilon", str(bundle), "--keys", keys, "--json", *options])
    assert answer.exit_code in (0, 1, 3), answer.output
    return answer.exit_code, json.loads(answer.stdout)["audits"][0]


def test_defaults_that_do_not_keep_their_epsilon_are_refuted(federation: Make, tmp_path: Path) -> None:
    """FLIP's: clipped to 1, noise for a sensitivity of 1e-4, and a declared epsilon of 10."""
    mod = LocalDpMod(clipping_norm=1.0, sensitivity=1e-4, epsilon=10.0, delta=1e-5)
    exit_code, found = audit(played(federation, tmp_path, [mod], canaries=40))

    assert exit_code == 1
    assert found["finding"] == "not as declared"
    assert found["declared"] == 10 < found["lower"]
    assert found["canaries"] == 5 * 2 * 40


def test_an_honest_mod_is_consistent(federation: Make, tmp_path: Path) -> None:
    mod = LocalDpMod(clipping_norm=1.0, sensitivity=1.0, epsilon=5.0, delta=1e-5)
    _, found = audit(played(federation, tmp_path, [mod], canaries=2))

    assert found["finding"] != "not as declared"
    assert found["lower"] < found["upper"] < found["declared"] == 5


def test_the_update_is_changed_before_the_mod_and_only_on_request(federation: Make, tmp_path: Path) -> None:
    """Flower clips in place, so that the 0-d parameter counts in the norm but leaves as it is."""
    norms, scalar = {}, 0.0
    for canaries in (0, 30):
        quiet = LocalDpMod(clipping_norm=100.0, sensitivity=0.0, epsilon=10.0, delta=1e-5)
        bundle = read_bundle(played(federation, tmp_path / str(canaries), [quiet], canaries, rounds=1))
        message = bundle.message("client-0", 1)
        assert message is not None
        assert message.received is not None
        before, after = bundle.arrays(bundle.rounds[1].sent), bundle.arrays(message.received)
        floats = [name for name, tensor in after.items() if tensor.is_floating_point() and tensor.dim()]
        scalar = float(after["scale"] - before["scale"])
        norms[canaries] = float(np.sqrt(sum(float((after[n] - before[n]).norm()) ** 2 for n in floats)))
        assert (preferred(message.facts, CANARIES) is not None) == bool(canaries)

    assert norms[0] < 20
    assert norms[30] == pytest.approx(100 * np.sqrt(1 - (scalar / (100 * LENGTH)) ** 2), rel=1e-3)
    assert not keys_folder(tmp_path / "0" / "clients").exists()


def test_without_noise_on_the_client_there_are_no_canaries(
    federation: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR, logger="fedglass"):
        bundle = read_bundle(played(federation, tmp_path, [], 30, rounds=1))

    assert "such as LocalDpMod" in caplog.text
    message = bundle.message("client-0", 1)
    assert message is not None
    assert preferred(message.facts, CANARIES) is None
