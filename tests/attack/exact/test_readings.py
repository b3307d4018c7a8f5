"""What the recipe `exact` reads of messages that a plain loop of PyTorch made, and what it must not claim."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedglass.core.optimisers import SGD
from fedglass.core.params import buffers_of, weights_of
from fedglass.core.types import Knowledge, Observation, Reconstruction, Training, Whitening
from fedglass.data.photos import photos
from fedglass.recipes.catalogue import recipe

SHAPE, PLAIN = (3, 12, 12), Whitening((0.5,) * 3, (0.25,) * 3)


def dense(width: int = 128, classes: int = 10) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(432, width), nn.ReLU(), nn.Linear(width, classes))


def pictures(count: int) -> tuple[Tensor, Tensor]:
    chosen = photos().resized(12)
    return chosen.images[:count], chosen.labels[:count]


def seen(model: nn.Module, images: Tensor, labels: Tensor, training: Training, classes: int = 10) -> Observation:
    """The message of a client that trains on all of its examples at each step."""
    trained = copy.deepcopy(model)
    optimiser = training.optimiser
    assert isinstance(optimiser, SGD)
    options: dict[str, Any] = {"momentum": optimiser.momentum, "weight_decay": optimiser.weight_decay}
    steps = torch.optim.SGD(trained.parameters(), training.lr, **options)
    for _ in range(training.epochs):
        steps.zero_grad()
        F.cross_entropy(trained(PLAIN.whiten(images)), labels).backward()  # type: ignore[no-untyped-call]
        steps.step()
    before, after = weights_of(model), weights_of(trained)
    update = {name: after[name] - before[name] for name in before}
    knows = Knowledge(SHAPE, classes, len(labels), PLAIN, training=training)
    return Observation(model, before, buffers_of(model), update, knows)


def psnr(found: Reconstruction, truth: Tensor) -> list[float]:
    """Of each true image, that of the nearest one that was read."""
    if not len(found.images):
        return [0.0] * len(truth)
    errors = (found.images.clamp(0, 1).unsqueeze(1) - truth).square().flatten(2).mean(2)  # (m, n)
    return [-10 * math.log10(max(float(error), 1e-20)) for error in errors.min(0).values]


@pytest.mark.parametrize(
    "training",
    [
        Training(lr=0.05),
        Training(lr=0.05, epochs=20),
        Training(lr=0.05, epochs=5, optimiser=SGD(momentum=0.9)),
        Training(lr=0.05, epochs=5, optimiser=SGD(momentum=0.9, weight_decay=0.01)),
    ],
    ids=["one step", "twenty steps", "momentum", "decay"],
)
def test_one_image_is_divided_out_of_a_dense_layer(training: Training) -> None:
    images, labels = pictures(1)
    found = recipe("exact").run(seen(dense(), images, labels, training))
    assert (found.method, found.explains) == ("division", True)
    assert psnr(found, images)[0] > 60


@pytest.mark.parametrize("count", [4, 8])
def test_batches_are_read_from_a_dense_layer(count: int) -> None:
    images, labels = pictures(count)
    found = recipe("exact").run(seen(dense(400), images, labels, Training(lr=0.05)))
    assert found.explains
    assert min(psnr(found, images)) > 40


def test_a_mixture_is_no_image() -> None:
    """Four images of two classes: rows of one activation pattern all give the same mixture."""
    images, _ = pictures(4)
    labels = torch.tensor([0, 1, 0, 1])
    found = recipe("exact").run(seen(dense(60, classes=2), images, labels, Training(lr=0.05), classes=2))
    assert not found.explains or min(psnr(found, images)) > 40


def test_noise_is_not_called_an_explanation() -> None:
    images, labels = pictures(1)
    message = seen(dense(), images, labels, Training(lr=0.05))
    generator = torch.Generator().manual_seed(0)
    noisy = {name: t + torch.randn(t.shape, generator=generator) for name, t in message.update.items()}
    found = recipe("exact").run(Observation(message.model, message.before, message.buffers, noisy, message.knows))
    assert not found.explains


def test_what_is_pooled_is_read_and_filled_in_without_a_claim() -> None:
    images, labels = pictures(1)
    torch.manual_seed(0)
    model = nn.Sequential(nn.AvgPool2d(2), nn.Flatten(), nn.Linear(108, 64), nn.ReLU(), nn.Linear(64, 10))
    found = recipe("exact").run(seen(model, images, labels, Training(lr=0.05)))
    assert (found.method, found.explains) == ("pooled_input", False)
    pooled = F.avg_pool2d(found.images, 2) - F.avg_pool2d(images, 2)
    assert float(pooled.abs().max()) < 1e-2
    assert psnr(found, images)[0] > 20


def test_where_nothing_applies_the_reasons_are_given() -> None:
    images, labels = pictures(2)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Sigmoid(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10))
    found = recipe("exact").run(seen(model, images, labels, Training(lr=0.05)))
    assert not found.explains
    assert "division" in found.reasons
    assert found.method or found.images.shape == (0, *SHAPE)
