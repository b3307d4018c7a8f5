"""Decoys are the adversary's own pictures first, and made-up ones that look like photographs to a network."""

from __future__ import annotations

from dataclasses import replace

import torch

from fedglass.core.rng import stream
from fedglass.core.types import Knowledge, Training, Whitening
from fedglass.guard.checks import dead_leaves, decoy_images

SHAPE, CLASSES = (1, 8, 8), 4
KNOWS = Knowledge(SHAPE, CLASSES, 2, Whitening((0.5,), (0.25,)), training=Training(lr=0.1))


def test_pictures_that_the_adversary_has_come_first_and_made_up_ones_have_edges_and_smooth_places() -> None:
    has = torch.rand(1, *SHAPE, generator=stream(0, "has"))
    images = decoy_images(replace(KNOWS, examples=6), has, 0)
    assert torch.equal(images[0], has[0])
    assert torch.equal(images[1], has[0].flip(-1))
    assert len(images) == 6
    made = dead_leaves(replace(KNOWS, shape=(3, 32, 32)), 8, stream(0, "leaves"))
    steps = (made[..., 1:] - made[..., :-1]).abs()
    assert float((steps == 0).float().mean()) > 0.5
    assert float(steps.max()) > 0.2
    assert made.min() >= 0
    assert made.max() <= 1
