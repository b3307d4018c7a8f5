"""Candidates are the client's own pictures first, and made-up ones that look like photographs to a network."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from fedglass.core.rng import stream
from fedglass.core.types import Knowledge, Training, Whitening
from fedglass.guard.checks import candidates_for, dead_leaves, other_images
from fedglass.guard.outbound import Outbound

SHAPE, CLASSES = (1, 8, 8), 4
KNOWS = Knowledge(SHAPE, CLASSES, 2, Whitening((0.5,), (0.25,)), training=Training(lr=0.1))


def test_pictures_of_the_client_come_first_and_made_up_ones_have_edges_and_smooth_places() -> None:
    has = torch.rand(1, *SHAPE, generator=stream(0, "has"))
    images = other_images(replace(KNOWS, examples=6), has, 0)
    assert torch.equal(images[0], has[0])
    assert torch.equal(images[1], has[0].flip(-1))
    assert len(images) == 6
    made = dead_leaves(replace(KNOWS, shape=(3, 32, 32)), 8, stream(0, "leaves"))
    steps = (made[..., 1:] - made[..., :-1]).abs()
    assert float((steps == 0).float().mean()) > 0.5
    assert float(steps.max()) > 0.2
    assert made.min() >= 0
    assert made.max() <= 1


@pytest.mark.parametrize("others", [0, 3, 400])
@pytest.mark.parametrize(("examples", "enough"), [(2, 1000), (8, 200)])
def test_each_label_of_the_batch_has_as_many_candidates_as_the_game_needs(
    toy: Any, others: int, examples: int, enough: int
) -> None:
    inputs, labels = toy.images(examples, "true"), torch.arange(examples) % 2
    given = toy.images(others, "others") if others else None
    model = toy.dense()
    before = {name: t.detach() for name, t in model.named_parameters()}
    pool = candidates_for(Outbound(model, before, before, inputs, labels, Training(lr=0.1), others=given), 0)
    for label in (0, 1):
        of_label = pool.images[pool.labels == label]
        assert len(of_label) > enough
        assert len({image.numpy().tobytes() for image in of_label}) == len(of_label)
        assert float(of_label.min()) >= 0
        assert float(of_label.max()) <= 1


def test_targets_that_are_no_classes_have_candidates_too(toy: Any) -> None:
    model = toy.dense()
    before = {name: t.detach() for name, t in model.named_parameters()}
    out = Outbound(model, before, before, toy.images(2, 0), torch.rand(2, 3), Training(lr=0.1))
    pool = candidates_for(out, 0)
    assert pool.labels.shape == (len(pool.images), 3)
