"""Laws of the frozen values."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import chain
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedglass.core.errors import UsageError
from fedglass.core.facts import Fact
from fedglass.core.optimisers import SGD, Adam, AdamW
from fedglass.core.types import BatchNorm, Knowledge, Training, Whitening


@given(st.integers(1, 40), st.integers(1, 5), st.none() | st.integers(1, 50))
def test_batches_cover_every_example_once(examples: int, epochs: int, size: int | None) -> None:
    training = Training(lr=0.1, epochs=epochs, batch_size=size)
    rows = [list(range(examples))[batch] for batch in training.batches(examples)]
    assert list(chain(*rows)) == list(range(examples))
    assert all(len(batch) == (size or examples) for batch in rows[:-1])
    assert 1 <= len(rows[-1]) <= (size or examples)
    assert training.local_steps(examples) == epochs * math.ceil(examples / (size or examples))


@pytest.mark.parametrize("lr", [0.0, -1.0, math.nan])
def test_a_learning_rate_is_positive(lr: float) -> None:
    with pytest.raises(UsageError, match=r"training\.lr"):
        Training(lr=lr)


@pytest.mark.parametrize(("field", "value"), [("epochs", 0), ("batch_size", 0), ("batch_size", -3)])
def test_counts_of_a_training_are_positive(field: str, value: int) -> None:
    with pytest.raises(UsageError, match=f"training.{field} must be at least 1, got {value}"):
        Training(lr=0.1, **{field: value})  # type: ignore[arg-type]  # a field of int


def test_a_training_prints_as_itself() -> None:
    training = Training(lr=0.1, epochs=3, batch_size=5, batch_norm=BatchNorm.BATCH)
    assert eval(repr(training)) == training
    other = Training(0.1, 1, 5, BatchNorm.FROZEN, Adam(), False, 7, 1.0, 0.1)
    assert eval(repr(other)) == other
    assert hash(eval(repr(other))) == hash(other)


def test_a_plain_training_keeps_the_name_under_which_its_runs_are_recorded() -> None:
    assert repr(Training(0.1)) == "Training(lr=0.1, epochs=1, batch_size=None, batch_norm=BatchNorm.FROZEN)"
    assert repr(Training(0.1, clip=2.0)).endswith("batch_norm=BatchNorm.FROZEN, clip=2.0)")


@given(st.integers(1, 40), st.integers(1, 60), st.none() | st.integers(1, 50))
def test_steps_in_place_of_epochs(examples: int, steps: int, size: int | None) -> None:
    training = Training(lr=0.1, batch_size=size, steps=steps)
    each = len(training.batches(examples))
    assert training.local_steps(examples) == steps
    assert (training.passes(examples) - 1) * each < steps <= training.passes(examples) * each


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"steps": 3, "epochs": 2}, r"training\.steps takes the place of training\.epochs, got steps=3 and epochs=2"),
        ({"steps": 0}, r"training\.steps must be at least 1, got 0"),
        ({"steps": 1.5}, r"training\.steps must be a whole number"),
        ({"clip": 0.0}, r"training\.clip must be positive and finite, got 0\.0"),
        ({"clip": math.inf}, r"training\.clip"),
        ({"label_smoothing": 1.0}, r"training\.label_smoothing must be at least 0 and below 1, got 1\.0"),
        ({"label_smoothing": -0.1}, r"training\.label_smoothing"),
    ],
)
def test_what_no_client_can_do_is_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        Training(lr=0.1, **options)


@pytest.mark.parametrize(
    ("training", "travel"),
    [
        (Training(0.1, 2, 2), 0.6),
        (Training(0.1, batch_size=2, steps=2, optimiser=SGD(momentum=0.5)), 0.25),
        (Training(0.1, clip=1.0, label_smoothing=0.1), 0.1),
        (Training(0.1, optimiser=SGD(weight_decay=0.1)), None),
        (Training(0.1, optimiser=Adam()), None),
        (Training(0.1, optimiser=AdamW()), None),
    ],
    ids=repr,
)
def test_the_size_of_a_gradient_is_known_where_the_optimiser_tells_it(training: Training, travel: float | None) -> None:
    # The number of steps and the rate are told along with the training.
    knows = Knowledge((1, 8, 8), 5, 5, Whitening((0.5,), (0.5,)), training=training, steps=6, lr=0.1)
    assert knows.travel == (None if travel is None else pytest.approx(travel))
    assert (Fact.SIZE in knows.facts) == (travel is not None)
    assert {Fact.TRAINING, Fact.STEPS, Fact.LR} <= knows.facts
    untold = replace(knows, training=None)
    assert (untold.travel, Fact.SIZE in untold.facts) == (pytest.approx(0.6), True)
    assert replace(untold, lr=None).travel is None
    assert Fact.SIZE not in replace(untold, steps=None).facts


def test_unwhitening_undoes_whitening() -> None:
    whitening = Whitening((0.5, 0.4, 0.3), (0.2, 0.3, 0.1))
    pixels = torch.rand(2, 3, 4, 4, dtype=torch.float64)
    torch.testing.assert_close(whitening.unwhiten(whitening.whiten(pixels)), pixels)
    whitened = whitening.whiten(pixels)
    assert whitened.dtype == torch.float64
    torch.testing.assert_close(whitened[1, 2], (pixels[1, 2] - 0.3) / 0.1)


@pytest.mark.parametrize(("mean", "std"), [((0.5,), (0.1, 0.1)), ((0.5,), (0.0,)), ((0.5,), (-1.0,))])
def test_whitening_needs_positive_deviations(mean: tuple[float, ...], std: tuple[float, ...]) -> None:
    with pytest.raises(UsageError, match="whitening"):
        Whitening(mean, std)


def test_bounds_are_whitened_channel_by_channel() -> None:
    knows = Knowledge((2, 3, 3), 5, 1, Whitening((0.5, 0.25), (0.5, 0.25)))
    low, high = knows.bounds()
    assert low.flatten().tolist() == [-1.0, -1.0]
    assert high.flatten().tolist() == [1.0, 3.0]
