"""What the recipe `exact` reads of messages that a plain loop of PyTorch made, and what it must not claim."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fedglass.core.optimisers import SGD
from fedglass.core.rng import stream
from fedglass.core.types import Training
from fedglass.models.vit import ViTBlock, vit
from fedglass.recipes import recipe


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
def test_one_image_is_divided_out_of_a_dense_layer(plain: Any, training: Training) -> None:
    images, labels = plain.pictures(1)
    found = recipe("exact").run(plain.seen(plain.dense(), images, labels, training))
    assert (found.method, found.explains) == ("division", True)
    assert plain.psnr(found, images)[0] > 60


@pytest.mark.parametrize("count", [4, 8])
def test_batches_are_read_from_a_dense_layer(plain: Any, count: int) -> None:
    images, labels = plain.pictures(count)
    found = recipe("exact").run(plain.seen(plain.dense(400), images, labels, Training(lr=0.05)))
    assert found.explains
    assert min(plain.psnr(found, images)) > 40


@pytest.mark.parametrize(("width", "classes"), [(60, 2), (200, 2), (60, 1)], ids=["narrow", "wide", "one label"])
def test_a_mixture_is_no_image(plain: Any, width: int, classes: int) -> None:
    """Two logits, labels of two classes or one: rows of one activation pattern all give the same mixture."""
    images, _ = plain.pictures(4)
    labels = torch.arange(4) % classes
    message = plain.seen(plain.dense(width, max(2, classes)), images, labels, Training(lr=0.05), max(2, classes))
    found = recipe("exact").run(message)
    assert not found.explains or min(plain.psnr(found, images)) > 40


def test_noise_is_not_called_an_explanation(plain: Any) -> None:
    images, labels = plain.pictures(1)
    message = plain.seen(plain.dense(), images, labels, Training(lr=0.05))
    generator = stream(0, "tests", "noise")  # a plain seed is one that weak_noise tries
    noisy = {name: t + torch.randn(t.shape, generator=generator) for name, t in message.update.items()}
    assert not recipe("exact").run(replace(message, update=noisy)).explains


def test_what_is_pooled_is_read_and_filled_in_without_a_claim(plain: Any) -> None:
    images, labels = plain.pictures(1)
    torch.manual_seed(0)
    model = nn.Sequential(nn.AvgPool2d(2), nn.Flatten(), nn.Linear(108, 64), nn.ReLU(), nn.Linear(64, 10))
    found = recipe("exact").run(plain.seen(model, images, labels, Training(lr=0.05)))
    assert (found.method, found.explains) == ("pooled_input", False)
    pooled = F.avg_pool2d(found.images, 2) - F.avg_pool2d(images, 2)
    assert float(pooled.abs().max()) < 1e-2
    assert plain.psnr(found, images)[0] > 20


def convolutional(activation: type[nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    first = nn.Conv2d(3, 12, 3, 1, 1), activation(), nn.Flatten()
    return nn.Sequential(*first, nn.Linear(1728, 64), nn.ReLU(), nn.Linear(64, 10))


def test_one_convolution_is_undone_by_a_linear_system(plain: Any) -> None:
    images, labels = plain.pictures(3)
    found = recipe("exact").run(plain.seen(convolutional(nn.Tanh), images, labels, Training(lr=0.05)))
    assert (found.method, found.explains) == ("dense_features", True)
    assert min(plain.psnr(found, images)) > 40


def test_features_behind_a_relu_are_inverted_and_verified_by_the_head(plain: Any) -> None:
    images, labels = plain.pictures(3)
    found = recipe("exact").run(plain.seen(convolutional(nn.ReLU), images, labels, Training(lr=0.05)))
    assert found.method == "dense_features"
    assert "features_verified: 1" in found.notes
    assert min(plain.psnr(found, images)) > 22


def test_features_of_noise_are_not_inverted(plain: Any) -> None:
    images, labels = plain.pictures(1)
    message = plain.seen(convolutional(nn.ReLU), images, labels, Training(lr=0.05))
    generator = stream(0, "tests", "noise")
    noisy = {name: t + torch.randn(t.shape, generator=generator) for name, t in message.update.items()}
    found = recipe("exact").run(replace(message, update=noisy))
    assert len(found.images) == 0
    assert found.reasons["dense_features"] == "it found nothing"


def test_one_image_of_a_vision_transformer_is_read_in_closed_form(plain: Any) -> None:
    images, labels = plain.pictures(1, side=32)
    torch.manual_seed(0)
    model = vit(shape=(3, 32, 32), classes=10)
    found = recipe("exact").run(plain.seen(model, images, labels, Training(lr=0.1)))
    assert (found.method, found.explains) == ("vit_closed_form", True)
    assert plain.psnr(found, images)[0] > 40


def test_blocks_with_shortcuts_are_read_by_their_positions_alone(plain: Any) -> None:
    images, labels = plain.pictures(1, side=32)
    torch.manual_seed(0)
    model = vit(shape=(3, 32, 32), classes=10)
    model.blocks = nn.Sequential(ViTBlock(384, 4), ViTBlock(384, 4))
    found = recipe("exact").run(plain.seen(model, images, labels, Training(lr=0.1)))
    assert found.method == "vit_closed_form"
    assert "attention: 0" in found.notes
    assert plain.psnr(found, images)[0] > 40


def test_where_nothing_applies_the_reasons_are_given(plain: Any) -> None:
    images, labels = plain.pictures(2)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Sigmoid(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10))
    found = recipe("exact").run(plain.seen(model, images, labels, Training(lr=0.05)))
    assert not found.explains
    assert "division" in found.reasons
    assert found.method or found.images.shape == (0, 3, 12, 12)
