"""Canaries in a recorded training: off by default, inserted before clipping and noise, or refused in a sentence."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import fedglass
from fedglass.bounds.success import guessed_epsilon
from fedglass.core.errors import UsageError
from fedglass.recorders.canaries import OPTIMIZERS, sampling_rate
from fedglass.recorders.flower import recording_mod
from fedglass.recordings.facts import RESERVATION_IDS, preferred
from fedglass.recordings.observed import update_of
from fedglass.recordings.privacy import CANARIES, CanaryKey, keys_folder, messages_with_canaries
from fedglass.recordings.reader import read_bundle

IMAGES = torch.rand(6, 1, 8, 8, generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(6) % 5
CLIP = 0.5


class DPOptimizer:
    """A stand-in with the attributes of Opacus's optimiser that the recorder uses."""

    def __init__(self, model: nn.Module, noise: float, rate: float | None) -> None:
        self.params = [weight for weight in model.parameters() if weight.requires_grad]
        self.original = torch.optim.SGD(self.params, lr=0.1)
        self.noise, self.max_grad_norm, self.accumulated_iterations = noise, CLIP, 1
        self.sum: list[Tensor] = []
        self.clipped = 0
        self.step_hook = None if rate is None else self._hook(rate)
        self.skips: list[bool] = []

    def _hook(self, sample_rate: float) -> Callable[[Any], float]:
        return lambda private: sample_rate

    def _check_skip_next_step(self, pop_next: bool = True) -> bool:
        return bool(self.skips) and (self.skips.pop(0) if pop_next else self.skips[0])

    def _get_flat_grad_sample(self, weight: nn.Parameter) -> Tensor:
        rows: Tensor = weight.grad_sample  # type: ignore[attr-defined] # as Opacus stores it
        return rows

    def clip_and_accumulate(self) -> None:
        rows = [self._get_flat_grad_sample(weight) for weight in self.params]
        norms = torch.stack([row.flatten(1).norm(dim=1) for row in rows]).norm(dim=0)
        scale = (self.max_grad_norm / norms).clamp(max=1.0)
        self.sum = [torch.tensordot(scale, row, dims=1) for row in rows]
        self.clipped = len(norms)

    def step(self) -> None:
        self.clip_and_accumulate()
        if self._check_skip_next_step():
            return
        for weight, total in zip(self.params, self.sum, strict=True):
            weight.grad = total + self.noise * CLIP * torch.randn(total.shape)
        self.original.step()


@pytest.fixture
def opacus(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[DPOptimizer]]:
    module = ModuleType(OPTIMIZERS)
    module.DPOptimizer = DPOptimizer  # type: ignore[attr-defined] # the stand-in
    monkeypatch.setitem(sys.modules, OPTIMIZERS, module)
    plain = DPOptimizer.clip_and_accumulate
    yield DPOptimizer
    assert DPOptimizer.clip_and_accumulate is plain


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 20), nn.Tanh(), nn.Linear(20, 5))


def train(model: nn.Module, private: DPOptimizer) -> None:
    """Take a step on all examples, with gradients per example."""
    weights = dict(model.named_parameters())

    def loss(at: dict[str, Tensor], image: Tensor, label: Tensor) -> Tensor:
        logits: Tensor = torch.func.functional_call(model, at, (image[None],))
        return F.cross_entropy(logits, label[None])

    F.cross_entropy(model(IMAGES), LABELS).backward()
    rows = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))(weights, IMAGES, LABELS)
    for name, weight in weights.items():
        weight.grad_sample = rows[name].detach()  # type: ignore[attr-defined] # as Opacus stores it
    private.step()


def recorded(folder: Path, noise: float, canaries: int, rate: float | None = 1.0) -> DPOptimizer:
    model = network()
    private = DPOptimizer(model, noise, rate)
    with fedglass.recording(folder, model, client="a", round=3, canaries=canaries):
        train(model, private)
    return private


def scores_of(folder: Path) -> tuple[Tensor, Tensor]:
    bundle = read_bundle(folder)
    ((client, index, key),) = messages_with_canaries(bundle, keys_folder(folder))
    update = update_of(bundle, client, index)
    assert update is not None
    return -key.canaries.scores({name: update[name] for name in key.names}), key.canaries.coins()


def test_canaries_are_off_by_default(opacus: type[DPOptimizer], tmp_path: Path) -> None:
    private = recorded(tmp_path / "bundle", noise=0.0, canaries=0)

    assert private.clipped == len(IMAGES)
    assert not keys_folder(tmp_path / "bundle").exists()
    assert preferred(read_bundle(tmp_path / "bundle").facts_of("a", 3), CANARIES) is None


def test_canaries_are_clipped_as_examples_are(
    opacus: type[DPOptimizer], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    private = recorded(tmp_path / "bundle", noise=0.0, canaries=200)
    scores, coins = scores_of(tmp_path / "bundle")

    assert private.clipped == len(IMAGES) + int(coins.sum())
    excluded, included = scores[~coins], scores[coins]
    assert float(included.mean() - excluded.mean()) == pytest.approx(0.1 * CLIP, rel=0.2)
    assert guessed_epsilon(scores.numpy(), coins.numpy(), 1e-5) > 1.5
    assert "inserts 200 canaries into the training of 'a'" in caplog.text


def test_with_noise_the_coins_are_hidden(opacus: type[DPOptimizer], tmp_path: Path) -> None:
    recorded(tmp_path / "bundle", noise=100.0, canaries=200)
    scores, coins = scores_of(tmp_path / "bundle")

    assert guessed_epsilon(scores.numpy(), coins.numpy(), 1e-5) < 0.5


def test_the_bundle_says_that_there_are_canaries_and_not_which(opacus: type[DPOptimizer], tmp_path: Path) -> None:
    recorded(tmp_path / "bundle", noise=0.0, canaries=50)
    facts = read_bundle(tmp_path / "bundle").facts_of("a", 3)
    fact = preferred(facts, CANARIES)
    key = json.loads((tmp_path / "bundle-canaries" / "a.json").read_text())["rounds"]["3"]

    assert (fact["count"], fact["unit"]) == (50, "example")
    assert fact["commitment"] == CanaryKey.model_validate(key).commitment("a", 3)
    assert key["seed"] not in json.dumps(facts)
    assert "canaries" in preferred(facts, RESERVATION_IDS)


def test_two_runs_have_different_canaries(opacus: type[DPOptimizer], tmp_path: Path) -> None:
    for name in ("one", "other"):
        recorded(tmp_path / name, noise=0.0, canaries=50)

    assert not torch.equal(scores_of(tmp_path / "one")[1], scores_of(tmp_path / "other")[1])


def test_a_batch_in_parts_and_its_sampling_rate_are_respected(opacus: type[DPOptimizer], tmp_path: Path) -> None:
    model = network()
    private = DPOptimizer(model, 0.0, 1e-9)
    private.skips = [True, False]
    counts = []
    with fedglass.recording(tmp_path / "rare", model, client="a", round=1, canaries=50):
        for _ in range(2):
            train(model, private)
            counts.append(private.clipped)
    assert counts == [len(IMAGES), len(IMAGES)]
    assert sampling_rate(DPOptimizer(model, 0.0, 0.25)) == 0.25
    assert sampling_rate(DPOptimizer(model, 0.0, None)) is None


def test_a_loop_without_gradients_per_example_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, OPTIMIZERS, raising=False)
    with (
        pytest.raises(UsageError, match="only with Opacus"),
        fedglass.recording(tmp_path / "bundle", network(), client="a", round=1, canaries=5),
    ):
        pass


def test_steps_without_an_accountant_get_no_canaries(
    opacus: type[DPOptimizer], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR):
        private = recorded(tmp_path / "bundle", noise=0.0, canaries=50, rate=None)

    assert private.clipped == len(IMAGES)
    assert "No canary was inserted into the training of 'a'" in caplog.text
    with pytest.raises(UsageError, match="holds no canaries"):
        list(messages_with_canaries(read_bundle(tmp_path / "bundle"), keys_folder(tmp_path / "bundle")))


@pytest.mark.parametrize("count", [-1, 10**6])
def test_impossible_numbers_are_refused_before_the_training(
    opacus: type[DPOptimizer], tmp_path: Path, count: int
) -> None:
    with (
        pytest.raises(UsageError, match="canaries"),
        fedglass.recording(tmp_path / "bundle", network(), client="a", round=1, canaries=count),
    ):
        pass
    with pytest.raises(UsageError, match="canaries must be"):
        recording_mod(tmp_path / "clients", canaries=-1)
