"""A recording of a loop of one's own."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import fedglass
from fedglass.core.errors import UsageError
from fedglass.federation.truth import Truths
from fedglass.recorders.client import ClientRecorder
from fedglass.recorders.hooks import warn_once
from fedglass.recordings.facts import preferred
from fedglass.recordings.observed import contradictions_of
from fedglass.recordings.reader import read_bundle

GENERATOR = torch.Generator().manual_seed(0)
IMAGES = {name: torch.rand(6, 1, 8, 8, generator=GENERATOR) for name in "ab"}
LABELS = {name: torch.randint(5, (6,), generator=GENERATOR) for name in "ab"}
NONE = ((0.0,), (1.0,))


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Sigmoid(), nn.Flatten(), nn.Linear(72, 5))


def train(model: nn.Module, images: Tensor, labels: Tensor, epochs: int = 2) -> None:
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(epochs):
        for rows in torch.randperm(len(labels)).split(4):
            optimiser.zero_grad()
            F.cross_entropy(model(images[rows]), labels[rows]).backward()
            optimiser.step()


def averaged(states: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    return {name: torch.stack([state[name].float() for state in states]).mean(0) for name in states[0]}


def federation(folder: Path, rounds: int = 2, truth: bool = False) -> list[dict[str, Tensor]]:
    """FedAvg of two clients as anybody writes it, and the messages that were really sent."""
    server, said = network(), []
    for index in range(1, rounds + 1):
        states = []
        for name in "ab":
            model = network()
            model.load_state_dict(server.state_dict())
            with fedglass.recording(folder, model, client=name, round=index, truth=truth, whitening=NONE):
                train(model, IMAGES[name], LABELS[name])
            states.append({key: tensor.clone() for key, tensor in model.state_dict().items()})
        server.load_state_dict(averaged(states))
        fedglass.record_aggregate(folder, server, round=index)
        said += states
    return said


def test_rounds_and_clients_are_written_as_they_happened(tmp_path: Path) -> None:
    said = federation(tmp_path / "bundle")

    bundle = read_bundle(tmp_path / "bundle")

    assert sorted(bundle.rounds) == [1, 2]
    messages = [message for past in bundle.rounds.values() for message in past.messages]
    for message, sent in zip(messages, said, strict=True):
        assert message.received is not None
        assert all(map(torch.equal, bundle.arrays(message.received).values(), sent.values()))
        assert message.sent is None  # all start from the same model
    assert [finding.text for index in bundle.rounds for finding in contradictions_of(bundle, index)] == []


def test_how_it_trained_is_read(tmp_path: Path) -> None:
    federation(tmp_path / "bundle", rounds=1)

    told = read_bundle(tmp_path / "bundle").facts_of("b", 1)

    assert [preferred(told, name) for name in ("optimiser", "lr", "epochs", "batch_size")] == ["SGD", 0.1, 2, 4]
    assert preferred(told, "batch_norm") == "batch"


def test_the_truth_is_kept_beside_it_where_asked_for(tmp_path: Path) -> None:
    federation(tmp_path / "without")
    federation(tmp_path / "bundle", truth=True)

    assert not (tmp_path / "without-truth").exists()
    for name in "ab":
        own = Truths.load(tmp_path / "bundle-truth" / name).examples[name]
        assert len(own.labels) == 6  # those of both rounds, each once
        pairs = {(image.sum().item(), int(label)) for image, label in zip(own.images, own.labels, strict=True)}
        assert pairs == {(i.sum().item(), int(y)) for i, y in zip(IMAGES[name], LABELS[name], strict=True)}


def test_a_client_that_was_sent_another_model_is_told_apart(tmp_path: Path) -> None:
    first, second = network(), network()
    with torch.no_grad():
        second[0].bias += 1  # type: ignore[index, operator] # a sequence of layers
    for name, model in zip("ab", (first, second), strict=True):
        with fedglass.recording(tmp_path / "bundle", model, client=name, round=1):
            train(model, IMAGES[name], LABELS[name])

    messages = {message.client: message for message in read_bundle(tmp_path / "bundle").rounds[1].messages}

    assert messages["a"].sent is None
    assert messages["b"].sent is not None


def test_where_each_client_has_a_model_of_its_own_rounds_need_not_follow_each_other(tmp_path: Path) -> None:
    models = {"a": network(), "b": network()}
    with torch.no_grad():
        models["b"][0].bias += 1  # type: ignore[index, operator] # a sequence of layers
    for index in (1, 2):
        for name, model in models.items():
            with fedglass.recording(tmp_path / "bundle", model, client=name, round=index):
                train(model, IMAGES[name], LABELS[name])
        whole = network()
        fedglass.record_aggregate(tmp_path / "bundle", whole, round=index)

    second = read_bundle(tmp_path / "bundle").rounds[2]

    assert second.sent is None
    assert all(message.sent is not None for message in second.messages)


def test_a_training_that_raises_leaves_no_message(tmp_path: Path) -> None:
    model = network()
    with (
        pytest.raises(RuntimeError, match="lost"),
        fedglass.recording(tmp_path / "bundle", model, client="a", round=1),
    ):
        raise RuntimeError("connection lost")

    assert read_bundle(tmp_path / "bundle").rounds == {}


def test_a_message_is_not_overwritten(tmp_path: Path) -> None:
    federation(tmp_path / "bundle", rounds=1)

    with pytest.raises(UsageError, match="already"):
        federation(tmp_path / "bundle", rounds=1)


def test_a_message_that_is_there_is_refused_before_the_training(tmp_path: Path) -> None:
    federation(tmp_path / "bundle", rounds=1)
    trained = False

    with (
        pytest.raises(UsageError, match="already"),
        fedglass.recording(tmp_path / "bundle", network(), client="a", round=1),
    ):
        trained = True

    assert not trained


def test_a_normalisation_that_can_not_be_told_is_asked_for(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = network()
    with fedglass.recording(tmp_path / "bundle", model, client="a", round=1, truth=True):
        train(model, IMAGES["a"], LABELS["a"])

    assert "whitening=(mean, std)" in caplog.text


@pytest.mark.parametrize(
    ("told", "kept"),
    [(((0.131,), (0.308,)), True), (((0.1307,), (0.3081,)), True), (((0.5,), (0.25,)), False), (NONE, False)],
)
def test_a_normalisation_that_the_pixels_contradict_is_not_believed(
    told: Any, kept: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Pixels of a narrower range would all lie in [0, 1], and a picture in faded contrast stand for the true one."""
    model, levels = network(), torch.arange(6 * 64).view(6, 1, 8, 8) % 256 / 255
    with fedglass.recording(tmp_path / "bundle", model, client="a", round=1, truth=True, whitening=told):
        train(model, (levels - 0.1307) / 0.3081, LABELS["a"])

    assert (tmp_path / "bundle-truth").exists() == kept
    assert ("correct whitening" in caplog.text) == (not kept)


def by_bits(model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    return F.smooth_l1_loss(model(images), F.one_hot(labels, 5).float())


def by_hand(model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    return -model(images).log_softmax(1).gather(1, labels[:, None]).mean()


def of_two_sizes(model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    small = nn.functional.interpolate(images, 6)
    return F.cross_entropy(model[:4](small), labels) + F.cross_entropy(model(images), labels)  # type: ignore[index, operator] # a sequence of layers


@pytest.mark.parametrize(
    ("loss", "said"), [(by_bits, "labels of 'a'"), (by_hand, "labels of 'a'"), (of_two_sizes, "not images of one size")]
)
def test_examples_that_can_not_be_kept_do_not_end_a_training(
    loss: Callable[[nn.Module, Tensor, Tensor], Tensor],
    said: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    model = network()
    with fedglass.recording(tmp_path / "bundle", model, client="a", round=1, truth=True, whitening=NONE):
        loss(model, IMAGES["a"], LABELS["a"]).backward()  # type: ignore[no-untyped-call] # of torch
        torch.optim.SGD(model.parameters(), lr=0.1).step()

    assert said in caplog.text
    assert read_bundle(tmp_path / "bundle").facts_of("a", 1)["optimiser"] == {"read": "SGD"}
    assert not (tmp_path / "bundle-truth").exists()


def test_rows_of_a_table_are_no_pictures(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """And asking for their normalisation would lead nowhere."""
    model = nn.Linear(64, 5)
    with fedglass.recording(tmp_path / "bundle", model, client="a", round=1, truth=True):
        train(model, IMAGES["a"].flatten(1), LABELS["a"])

    assert "not images" in caplog.text
    assert "whitening" not in caplog.text


def elsewhere(model: nn.Module) -> None:
    worker = threading.Thread(target=lambda: train(model, IMAGES["a"], LABELS["a"]))
    worker.start()
    worker.join()


def without_optimiser(model: nn.Module) -> None:
    F.cross_entropy(model(IMAGES["a"]), LABELS["a"]).backward()
    with torch.no_grad():
        for weight in model.parameters():
            weight -= 0.1 * weight.grad  # type: ignore[operator] # there is one


@pytest.mark.parametrize("trains", [elsewhere, without_optimiser])
def test_a_training_that_nobody_could_see_is_said_not_to_be_seen(
    trains: Callable[[nn.Module], None], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = network()
    with fedglass.recording(tmp_path / "bundle", model, client="a", round=1):
        trains(model)

    assert "No torch optimizer step was observed" in caplog.text
    assert read_bundle(tmp_path / "bundle").rounds[1].messages[0].received is not None


def test_of_a_round_that_is_run_again_nothing_is_left_of_the_first_time(tmp_path: Path) -> None:
    """A client's folder that an earlier run has written to: its one learning rate would stand beside many."""
    recorder = ClientRecorder(tmp_path / "a", "a")
    for decays in (False, True):
        model = network()
        optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
        with recorder.reader() as reader:
            for _ in range(2):
                F.cross_entropy(model(IMAGES["a"]), LABELS["a"]).backward()
                optimiser.step()
                optimiser.param_groups[0]["lr"] *= 0.5 if decays else 1.0
        recorder.trained(1, reader)
        told = read_bundle(tmp_path / "a").facts_of("a", 1)
        assert ("lr" in told) == (not decays)
        assert ("x-lrs" in told) == decays


def test_another_network_that_is_trained_beside_it_is_none_of_it(tmp_path: Path) -> None:
    model, other = network(), network()
    with fedglass.recording(tmp_path / "bundle", model, client="a", round=1, truth=True, whitening=NONE):
        train(other, IMAGES["b"], LABELS["b"])
        train(model, IMAGES["a"], LABELS["a"])

    told = read_bundle(tmp_path / "bundle").facts_of("a", 1)

    assert [preferred(told, name) for name in ("steps", "examples", "epochs")] == [4, 6, 2]
    assert "x-reservations" not in told
    own = Truths.load(tmp_path / "bundle-truth" / "a").examples["a"]
    assert sorted(own.images.sum((1, 2, 3)).tolist()) == sorted(IMAGES["a"].sum((1, 2, 3)).tolist())


@pytest.mark.parametrize("place", ["fedglass.recordings.writer", "fedglass.recordings.truth_files"])
def test_a_full_disk_does_not_end_a_training(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither in the round in which it is full nor in those after it."""

    def full(*given: object, **options: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    model = network()
    for index in (1, 2):
        with fedglass.recording(tmp_path / "bundle", model, client="a", round=index, truth=True, whitening=NONE):
            train(model, IMAGES["a"], LABELS["a"])
            monkeypatch.setattr(f"{place}.write_atomic", full)
    fedglass.record_aggregate(tmp_path / "bundle", model, round=2)

    assert "No space left on device" in caplog.text
    monkeypatch.undo()
    assert read_bundle(tmp_path / "bundle").clients in ((), ("a",)), "what is there is whole"


def test_the_names_of_those_who_keep_a_truth_are_closed_too(tmp_path: Path) -> None:
    federation(tmp_path / "bundle", rounds=1, truth=True)

    for path in (tmp_path / "bundle-truth", *(tmp_path / "bundle-truth").rglob("*"), *(tmp_path / "bundle").rglob("*")):
        assert path.stat().st_mode & 0o077 == 0, path


def test_the_truth_is_kept_where_two_optimisers_step_on_one_pass(tmp_path: Path) -> None:
    model = network()
    weights = list(model.parameters())
    with fedglass.recording(tmp_path / "bundle", model, client="a", round=1, truth=True, whitening=NONE):
        F.cross_entropy(model(IMAGES["a"]), LABELS["a"]).backward()
        for part in (weights[:2], weights[2:]):
            torch.optim.SGD(part, lr=0.1).step()

    assert torch.equal(Truths.load(tmp_path / "bundle-truth" / "a").examples["a"].labels, LABELS["a"])


def test_gradients_by_torch_func_are_not_read_and_the_network_is(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def loss(model: nn.Module, weights: dict[str, Tensor], image: Tensor, label: Tensor) -> Tensor:
        return F.cross_entropy(torch.func.functional_call(model, weights, (image[None],)), label[None])

    warn_once.cache_clear()
    for name in "ab":
        model = network().eval()
        optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
        with fedglass.recording(tmp_path / "bundle", model, client=name, round=1, whitening=NONE):
            weights = dict(model.named_parameters())
            gradients = torch.func.vmap(torch.func.grad(partial(loss, model)), (None, 0, 0))
            for key, gradient in gradients(weights, IMAGES[name], LABELS[name]).items():
                weights[key].grad = gradient.mean(0)
            optimiser.step()
    bundle = read_bundle(tmp_path / "bundle")
    assert [preferred(bundle.facts, name) for name in ("shape", "classes")] == [[1, 8, 8], 5]
    assert "steps" not in bundle.facts_of("a", 1)
    assert [record.message.count("torch.func are not read") for record in caplog.records] == [1]
