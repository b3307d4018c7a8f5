"""Laws of the frozen values."""

from __future__ import annotations

import math
from itertools import chain

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedglass.core.errors import UsageError
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
