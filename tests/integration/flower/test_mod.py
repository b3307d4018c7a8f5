"""The client mod reads how a client trained and changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Context, Message
from flwr.clientapp.mod import LocalDpMod, fixedclipping_mod
from flwr.serverapp.strategy import DifferentialPrivacyClientSideFixedClipping, FedAvg
from tests.integration.flower.conftest import EXAMPLES, examples_of

from fedglass.defend.filters import FlowerLocalDP
from fedglass.federation.truth import Truths
from fedglass.recorders.flower import recorded, recording_mod
from fedglass.recorders.hooks import TrainingReader
from fedglass.recordings.facts import preferred
from fedglass.recordings.join import join
from fedglass.recordings.reader import read_bundle

Make = Callable[..., Any]
ALL = {"fraction_evaluate": 0.0, "min_available_nodes": 5, "min_train_nodes": 5}
WHITENING = ((0.5,), (0.25,))


def test_training_is_read_and_joined_with_what_the_server_saw(federation: Make, tmp_path: Path) -> None:
    expected = federation().play(FedAvg(**ALL))
    mod = recording_mod(tmp_path / "clients", whitening=WHITENING)

    found = federation([mod]).play(recorded(FedAvg(**ALL), tmp_path / "bundle"))

    assert all(np.array_equal(found[key], expected[key]) for key in expected)
    folders = [tmp_path / "bundle", *sorted((tmp_path / "clients").iterdir())]
    assert len(folders) == 6
    joined = join(tmp_path / "joined", folders)
    told = joined.facts_of("client-3", 2)
    read = {
        name: preferred(told, name)
        for name in ("optimiser", "lr", "steps", "epochs", "batch_size", "batch_norm", "loss")
    }
    assert read == {
        "optimiser": "SGD",
        "lr": 0.1,
        "steps": 4,
        "epochs": 2,
        "batch_size": 3,
        "batch_norm": "batch",
        "loss": "cross_entropy",
    }
    assert preferred(told, "options")["momentum"] == 0.9
    assert preferred(joined.facts, "shape") == [1, 8, 8]
    assert preferred(joined.facts, "classes") == 5


def test_the_truth_is_the_clients_own_examples_in_the_order_of_its_batches(federation: Make, tmp_path: Path) -> None:
    mod = recording_mod(tmp_path / "clients", truth=tmp_path / "truth", whitening=WHITENING)

    federation([mod]).play(FedAvg(**ALL), rounds=2)

    own = Truths.load(tmp_path / "truth" / "client-1").examples["client-1"]
    images, labels = examples_of(1)
    order = torch.randperm(EXAMPLES, generator=torch.Generator().manual_seed(1))
    assert torch.allclose(own.images, images[order], atol=1e-6)
    assert torch.equal(own.labels, labels[order])


def test_no_example_is_written_unless_it_is_asked_for(federation: Make, tmp_path: Path) -> None:
    federation([recording_mod(tmp_path / "clients")]).play(FedAvg(**ALL), rounds=1)

    assert list(tmp_path.rglob("*.safetensors")) == []


def test_mods_that_clip_and_add_noise_are_read(federation: Make, tmp_path: Path) -> None:
    noisy = LocalDpMod(clipping_norm=0.5, sensitivity=0.1, epsilon=10.0, delta=1e-5)
    federation([recording_mod(tmp_path / "noisy"), noisy]).play(FedAvg(**ALL), rounds=1)
    wrapped = DifferentialPrivacyClientSideFixedClipping(FedAvg(**ALL), 0.0, 0.25, 5)
    federation([recording_mod(tmp_path / "clipped"), fixedclipping_mod]).play(wrapped, rounds=1)

    first, second = (
        preferred(read_bundle(tmp_path / name / "client-0").facts_of("client-0", 1), "defences")
        for name in ("noisy", "clipped")
    )

    options = {"clipping_norm": 0.5, "sensitivity": 0.1, "epsilon": 10.0, "delta": 1e-5}
    assert first == [{"name": "flower_local_dp", "options": options}]
    assert abs(FlowerLocalDP(**options).std - 0.1 * np.sqrt(2 * np.log(1.25e5)) / 10) < 1e-12
    assert second == [{"name": "flower_fixed_clipping", "options": {"clipping_norm": 0.25}}]


def test_a_recorder_that_fails_neither_stops_the_client_nor_tells_the_server(federation: Make, tmp_path: Path) -> None:
    (tmp_path / "clients").write_text("no folder")
    nodes = federation([recording_mod(tmp_path / "clients", truth=tmp_path / "truth")])

    nodes.play(FedAvg(**ALL), rounds=1)

    assert len(nodes.answers[0]) == 5


def test_a_training_that_nobody_could_hear_is_said_in_the_log(
    federation: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def elsewhere(message: Message, context: Context, call_next: Any) -> Message:
        with ThreadPoolExecutor(1) as worker:
            reply: Message = worker.submit(call_next, message, context).result()
        return reply

    federation([recording_mod(tmp_path / "clients"), elsewhere]).play(FedAvg(**ALL), rounds=1)

    assert caplog.text.count("No torch optimizer step was observed") == 5


def test_a_training_that_could_not_be_followed_is_told_as_such(
    federation: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(reader: TrainingReader, *given: object) -> None:
        raise RuntimeError("of an odd module")

    monkeypatch.setattr(TrainingReader, "_on_enter", failing)
    federation([recording_mod(tmp_path / "clients")]).play(FedAvg(**ALL), rounds=1)

    told = read_bundle(tmp_path / "clients" / "client-0").facts_of("client-0", 1)

    assert [name for name in told if name != "defences"] == ["x-reservations", "x-reservation-ids"]


def test_a_client_that_fails_fails_as_ever(federation: Make, tmp_path: Path) -> None:
    def refusing(message: Message, context: Context, call_next: Any) -> Message:
        raise RuntimeError("private text")

    nodes = federation([recording_mod(tmp_path / "clients"), refusing])

    with pytest.raises(RuntimeError, match="private text"):
        nodes.play(FedAvg(**ALL), rounds=1)

    assert torch.nn.functional.cross_entropy.__module__ == "torch.nn.functional"
