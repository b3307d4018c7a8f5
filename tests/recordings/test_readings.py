"""Whatever names and types a message travelled with, it is the same message of the same model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from fedglass.core.errors import UpdateError
from fedglass.core.optimisers import SGD, Adam, AdamW
from fedglass.core.types import BatchNorm, Training
from fedglass.federation.transcript import Round
from fedglass.models.catalogue import build
from fedglass.recordings import BundleWriter, read_bundle
from fedglass.recordings.transcript import TranscriptReader, training_of

from .federations import CLASSES, SHAPE, Arrays, Real, State


class Normalised(nn.Module):
    """With running statistics, a counter, and a scalar parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 3, 3)
        self.norm = nn.BatchNorm2d(3)
        self.scale = nn.Parameter(torch.tensor(1.0))
        self.head = nn.Linear(3, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.conv(x)).relu().mean((2, 3)) * self.scale)  # type: ignore[no-any-return] # torch


def normalised() -> nn.Module:
    torch.manual_seed(0)
    return Normalised()


def first_round(folder: Path, real: Real, model: nn.Module) -> Round:
    real.record(folder)
    return TranscriptReader(read_bundle(folder), model, {}).round(1)


SENDERS: dict[str, Callable[[State], Arrays]] = {
    "numbers": lambda state: [tensor.numpy() for tensor in state.values()],
    "compiled": lambda state: {f"_orig_mod.{name}": tensor for name, tensor in state.items()},
    "parallel": lambda state: {f"module.{name}": tensor for name, tensor in state.items()},
    "both": lambda state: {f"module._orig_mod.{name}": tensor for name, tensor in state.items()},
    "wrapped": lambda state: {f"net.inner.{name}": tensor for name, tensor in state.items()},
    "shuffled": lambda state: dict(reversed(state.items())),
}


@pytest.mark.parametrize("sends", SENDERS.values(), ids=SENDERS)
@pytest.mark.parametrize("form", ["state", "update"])
def test_names_are_those_of_the_model(tmp_path: Path, sends: Callable[[State], Arrays], form: Any) -> None:
    plain = Real(model=normalised, steps=2)
    expected = first_round(tmp_path / "plain", plain, normalised())
    found = first_round(tmp_path / "other", replace(plain, sends=sends, form=form), normalised())
    assert list(found.before) == list(expected.before)
    for ours, theirs in zip(found.messages, expected.messages, strict=True):
        for name, update in theirs.update.items():
            torch.testing.assert_close(ours.update[name], update, rtol=1e-5, atol=1e-6)
        for name, statistic in theirs.buffers.items():
            torch.testing.assert_close(ours.buffers[name], statistic, rtol=1e-5, atol=1e-6)


def test_bfloat16_is_read_as_what_the_model_has(tmp_path: Path) -> None:
    def half(state: State) -> Arrays:
        return {name: t.bfloat16() if t.is_floating_point() else t for name, t in state.items()}

    past = first_round(tmp_path / "b", Real(sends=half), build("lenet", shape=SHAPE, classes=CLASSES))
    assert {tensor.dtype for tensor in past.before.values()} == {torch.float32}
    assert {tensor.dtype for tensor in past.messages[0].update.values()} == {torch.float32}


@pytest.mark.parametrize(
    "model", [lambda: build("lenet", shape=SHAPE, classes=CLASSES + 1), lambda: nn.Linear(3, 3), normalised]
)
@pytest.mark.parametrize("sends", [SENDERS["numbers"], SENDERS["shuffled"]])
def test_another_model_is_refused_in_a_sentence(
    tmp_path: Path, model: Callable[[], nn.Module], sends: Callable[[State], Arrays]
) -> None:
    Real(sends=sends).record(tmp_path / "b")
    with pytest.raises(UpdateError, match="was not recorded from this model"):
        TranscriptReader(read_bundle(tmp_path / "b"), model(), {}).round(1)


def test_half_a_state_is_refused(tmp_path: Path) -> None:
    BundleWriter(tmp_path / "b").round(0).sent({"weight": torch.zeros(3, 3)})
    with pytest.raises(UpdateError, match=r"lacks the model's parameter 'bias'"):
        TranscriptReader(read_bundle(tmp_path / "b"), nn.Linear(3, 3), {}).round(0)


def test_the_counter_tells_steps_and_mode(tmp_path: Path) -> None:
    """FedAvg's mean of whole numbers is a float: from the second round on too."""
    real = Real(model=normalised, steps=3, sizes=(2, 4))
    writer = real.record(tmp_path / "b")
    reading = TranscriptReader(read_bundle(tmp_path / "b"), normalised(), {})
    for index in (1, 2):
        people = reading.round(index).participants
        expected = Training(lr=0.1, epochs=3, batch_norm=BatchNorm.BATCH)
        assert [person.training for person in people] == [expected, expected]
    assert writer.round(2).state.index == 2


def test_numbers_of_examples_that_are_not_known_are_not_known(tmp_path: Path) -> None:
    writer = BundleWriter(tmp_path / "b")
    state = nn.Linear(2, 2).state_dict()
    writer.round(0).sent(state)
    writer.round(0).received("a", state, examples=(4, 9))
    writer.round(0).received("b", state, examples="unknown")
    writer.round(0).received("c", state)
    bundle = read_bundle(tmp_path / "b")
    people = TranscriptReader(bundle, nn.Linear(2, 2), {"c": 7}).round(0).participants
    assert [(person.examples, person.counted) for person in people] == [(4, False), (1, False), (7, True)]


READ = {"optimiser": "SGD", "lr": 0.1}
ADAM = {"optimiser": "Adam", "lr": 0.1, "steps": 1, "batch_sizes": [5]}
CASES: dict[str, tuple[dict[str, Any], int | None, Training | None]] = {
    "one batch": ({**READ, "steps": 1, "batch_sizes": [5]}, 5, Training(lr=0.1)),
    "epochs": (
        {**READ, "steps": 6, "batch_sizes": [2, 2, 1, 2, 2, 1]},
        5,
        Training(lr=0.1, epochs=2, batch_size=2),
    ),
    "cut short": ({**READ, "steps": 4, "batch_sizes": [2, 2, 1, 2]}, 5, Training(lr=0.1, batch_size=2, steps=4)),
    "the last of each epoch dropped": ({**READ, "steps": 4, "batch_sizes": [2, 2, 2, 2]}, 5, None),
    "not counted": ({**READ, "steps": 4, "batch_size": 2}, None, Training(lr=0.1, batch_size=2, steps=4)),
    "declared": ({**READ, "epochs": 2, "batch_size": 2}, 5, Training(lr=0.1, epochs=2, batch_size=2)),
    "momentum": (
        {**READ, "steps": 1, "batch_sizes": [5], "options": {"momentum": 0.9, "lr": 0.1, "foreach": None}},
        5,
        Training(lr=0.1, optimiser=SGD(momentum=0.9)),
    ),
    "Adam": (
        {"optimiser": "Adam", "lr": 0.1, "steps": 1, "batch_sizes": [5], "options": {"betas": [0.9, 0.99]}},
        5,
        Training(lr=0.1, optimiser=Adam(betas=(0.9, 0.99))),
    ),
    "of another kind": ({**READ, "optimiser": "RMSprop", "steps": 1, "batch_sizes": [5]}, 5, None),
    "amsgrad": (
        {"optimiser": "Adam", "lr": 0.1, "steps": 1, "batch_sizes": [5], "options": {"amsgrad": True}},
        5,
        None,
    ),
    "decoupled decay": (
        {**ADAM, "options": {"weight_decay": 0.1, "decoupled_weight_decay": True}},
        5,
        Training(lr=0.1, optimiser=AdamW(weight_decay=0.1)),
    ),
    "decoupled decay that is not named": (
        {**ADAM, "options": {"decoupled_weight_decay": True}},
        5,
        Training(lr=0.1, optimiser=AdamW(weight_decay=0.0)),
    ),
    "what a scheduler notes": (
        {**ADAM, "options": {"initial_lr": 0.1}},
        5,
        Training(lr=0.1, optimiser=Adam()),
    ),
    "an unknown option": ({**ADAM, "options": {"momentun": 0.1}}, 5, None),
    "no rate": ({"optimiser": "SGD", "steps": 1, "batch_sizes": [5]}, 5, None),
    "no batches": ({**READ, "steps": 3}, 5, None),
}


@pytest.mark.parametrize(("facts", "examples", "expected"), CASES.values(), ids=CASES)
def test_facts_become_a_training(facts: dict[str, Any], examples: int | None, expected: Training | None) -> None:
    assert training_of({name: {"read": value} for name, value in facts.items()}, examples, False) == expected
