"""SPEAR reads whole batches, with the help of rows that one example has alone; its certificate refuses mixtures."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedglass.attack.exact.dense import first_dense
from fedglass.attack.exact.division import spear
from fedglass.attack.exact.exact import FOUND_NOTHING, ExactSolution, SearchBudget
from fedglass.attack.exact.verify import fit_layer, message_of
from fedglass.core.rng import stream
from fedglass.core.types import Observation, Training

ONCE = Training(lr=0.05)


def answer(message: Observation) -> ExactSolution | str:
    return spear(message, SearchBudget(stream(0, "tests"), seconds=20.0))


def solved(message: Observation) -> ExactSolution | None:
    solution = answer(message)
    if isinstance(solution, str):
        assert solution == FOUND_NOTHING, "the method applies"
        return None
    return solution


def complete(message: Observation, images: Tensor) -> bool:
    """Whether these images explain the whole of the first layer."""
    layer = first_dense(message)
    assert not isinstance(layer, str)
    inputs = message.knows.whitening.whiten(images).flatten(1)
    return fit_layer(replace(layer, after=None), inputs)[2]


@pytest.mark.parametrize("count", [4, 6, 8])
def test_a_batch_is_read_from_the_zeros_of_its_gradients(plain: Any, count: int) -> None:
    images, labels = plain.pictures(count)
    found = solved(plain.seen(plain.dense(200), images, labels, ONCE))
    assert found is not None
    assert found.explains
    assert sorted(found.labels.tolist()) == sorted(labels.tolist())
    assert min(plain.psnr(found, images)) > 60


def test_a_batch_of_two_classes_is_read_too(plain: Any) -> None:
    images, _ = plain.pictures(4)
    found = solved(plain.seen(plain.dense(200, 2), images, torch.tensor([0, 1, 1, 0]), ONCE, 2))
    assert found is not None
    assert not found.explains or min(plain.psnr(found, images)) > 60


def test_the_certificate_takes_the_images_and_no_mixtures_of_them(plain: Any) -> None:
    images, _ = plain.pictures(3)
    labels = torch.tensor([0, 1, 0])
    message = plain.seen(plain.dense(200, 2), images, labels, ONCE, 2)
    mixed = torch.tensor([[0.7, 0.3, 0.0], [0.0, 1.0, 0.0], [0.0, 0.2, 0.8]]) @ images.flatten(1)
    mixtures = mixed.view_as(images)
    assert complete(message, images)
    replayable = message_of(message)
    assert replayable.verified(replayable.replay(images, labels)[0])
    # Mixtures span the same space, so that the layer's residual is as small: the signs of the units refuse them.
    assert not complete(message, mixtures)
    assert not replayable.verified(replayable.replay(mixtures, labels)[0])


def test_reasons_are_given(plain: Any) -> None:
    images, labels = plain.pictures(2)
    smooth = plain.seen(plain.dense(activation=nn.Sigmoid), images, labels, ONCE)
    assert answer(smooth) == "no ReLU follows the first dense layer"
    assert "division" in str(answer(plain.seen(plain.dense(), images[:1], labels[:1], ONCE)))


def test_noise_leaves_no_rank_to_search_in(plain: Any) -> None:
    images, labels = plain.pictures(3)
    message = plain.seen(plain.dense(), images, labels, ONCE)
    for t in message.update.values():
        t += torch.randn(t.shape, generator=stream(0, "tests", "spear"))
    found = solved(message)
    assert found is None or not found.explains
