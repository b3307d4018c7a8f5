"""Traces that a training leaves whatever the data were: what is declared rightly is never contradicted."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fedglass.checks.claim import Claim, ClientClaim
from fedglass.checks.consistency import contradictions
from fedglass.core.optimisers import SGD, Adam, AdamW
from fedglass.core.tensors import buffers_of, weights_of
from fedglass.core.types import BatchNorm, Training, Whitening
from fedglass.data.catalogue import photos
from fedglass.defend.noise import Clip
from fedglass.fl.release import Protection
from fedglass.models.catalogue import build
from fedglass.models.init import Uniform

SHAPE = (3, 12, 12)
WHITENING = Whitening((0.5,) * 3, (0.25,) * 3)
TRAINING = Training(lr=0.01)
OPTIMISERS: dict[type, Callable[..., torch.optim.Optimizer]] = {
    SGD: torch.optim.SGD,
    Adam: torch.optim.Adam,
    AdamW: torch.optim.AdamW,
}


def lenet() -> nn.Module:
    return build("lenet", shape=SHAPE, classes=10)


def wild() -> nn.Module:
    return build("lenet", shape=SHAPE, classes=10, init=Uniform())


def normalised() -> nn.Module:
    return build("resnet8", shape=SHAPE, classes=10)


def learnt() -> nn.Module:
    """A model that knows its data by heart: it has hardly a gradient there."""
    model = build("mlp", shape=SHAPE, classes=10)
    data = photos().resized(12)
    optimiser = torch.optim.Adam(model.parameters(), 1e-3)
    for _ in range(60):
        optimiser.zero_grad()
        F.cross_entropy(model(WHITENING.whiten(data.images)), data.labels).backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    return model


def black_and_white() -> nn.Module:
    """One layer of zeros for two classes: its gradients are of equal size where all pixels are."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(432, 2))
    nn.init.zeros_(model[1].weight)  # type: ignore[arg-type]
    nn.init.zeros_(model[1].bias)  # type: ignore[arg-type]
    return model


def trained(model: nn.Module, training: Training, count: int = 2, mode: bool = False) -> Claim:
    """What a plain loop of PyTorch makes of the training."""
    data = photos().resized(12).subset(range(count))
    net = copy.deepcopy(model).train(mode)
    options = {k: v for k, v in vars(training.optimiser).items() if k not in ("dampening", "nesterov")}
    optimiser = OPTIMISERS[type(training.optimiser)](net.parameters(), lr=training.lr, **options)
    two_classes = weights_of(model)[list(weights_of(model))[-1]].numel() == 2
    labels = data.labels % 2 if two_classes else data.labels
    for _ in range(training.local_steps(count)):
        optimiser.zero_grad()
        images = data.images.round() if two_classes else data.images
        F.cross_entropy(net(WHITENING.whiten(images)), labels).backward()  # type: ignore[no-untyped-call]
        if training.clip is not None:
            nn.utils.clip_grad_norm_(net.parameters(), training.clip)
        optimiser.step()
    before, after = weights_of(model), weights_of(net)
    update = {name: after[name] - before[name] for name in before}
    clients = (ClientClaim(training, stated_examples=count),)
    statistics = buffers_of(net)
    return Claim(
        model, before, buffers_of(model), update, WHITENING, clients, buffers_after=statistics, image_shape=SHAPE
    )


HONEST = {
    "one step": TRAINING,
    "many steps": replace(TRAINING, epochs=20),
    "far too long steps": replace(TRAINING, lr=1.0, epochs=5),
    "momentum": replace(TRAINING, epochs=3, optimiser=SGD(momentum=0.9)),
    "decay": replace(TRAINING, optimiser=SGD(weight_decay=0.1)),
    "clipped": replace(TRAINING, epochs=3, clip=0.1),
    "Adam": Training(lr=0.001, optimiser=Adam()),
    "Adam for long": Training(lr=0.01, epochs=20, optimiser=Adam()),
    "AdamW": Training(lr=0.001, epochs=4, optimiser=AdamW(weight_decay=0.1)),
}


@pytest.mark.parametrize("training", HONEST.values(), ids=HONEST)
@pytest.mark.parametrize("model", [lenet, wild, normalised, learnt, black_and_white])
def test_what_is_as_declared_is_not_contradicted(model: Callable[[], nn.Module], training: Training) -> None:
    assert contradictions(trained(model(), training)) == ()


def test_batch_statistics_as_declared_are_not_contradicted() -> None:
    training = replace(TRAINING, epochs=3, batch_norm=BatchNorm.BATCH)
    assert contradictions(trained(normalised(), training, mode=True)) == ()


def said(found: Claim, **changes: Any) -> str:
    """What is said of a message whose training is declared otherwise."""
    client, *_ = found.clients
    changed = replace(client, training=replace(client.training, **changes))
    return "; ".join(contradictions(replace(found, clients=(changed,))))


def test_statistics_and_their_count() -> None:
    moved = trained(normalised(), replace(TRAINING, epochs=3, batch_norm=BatchNorm.BATCH), mode=True)
    assert 'set training.batch_norm = "batch"' in said(moved, batch_norm=BatchNorm.FROZEN)
    assert "counted 3 batch(es), and 2 local step(s) are declared" in said(moved, epochs=2)
    still = trained(normalised(), TRAINING)
    assert 'set training.batch_norm = "frozen"' in said(still, batch_norm=BatchNorm.BATCH)
    assert said(replace(still, buffers_after={}), batch_norm=BatchNorm.BATCH) == ""  # nobody recorded them


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16])
def test_statistics_in_half_precision_have_not_moved(kind: torch.dtype) -> None:
    found = trained(normalised(), TRAINING)
    odd = {name: b + 0.123456 if b.is_floating_point() else b for name, b in found.buffers.items()}
    rounded = {name: b.to(kind).float() if b.is_floating_point() else b for name, b in odd.items()}
    assert said(replace(found, buffers=odd, buffers_after=rounded)) == ""


@pytest.mark.parametrize("optimiser", [Adam(), AdamW()])
@pytest.mark.parametrize("model", [lenet, wild, normalised])
def test_steps_of_equal_size_are_not_those_of_sgd(model: Callable[[], nn.Module], optimiser: Any) -> None:
    found = trained(model(), Training(lr=0.001, optimiser=optimiser))
    assert 'training.optimiser = "adam" with lr = 0.001' in said(found, optimiser=SGD())
    assert (
        said(found.protected_by(Protection(release=Clip(1.0))), optimiser=SGD()) == ""
    )  # a defence may have made them so


@pytest.mark.parametrize("model", [lenet, normalised])
def test_one_step_of_sgd_is_not_adams(model: Callable[[], nn.Module]) -> None:
    assert "leave training.optimiser out" in said(trained(model(), TRAINING), optimiser=Adam())


def test_no_step_of_adam_is_longer_than_its_rate() -> None:
    found = trained(lenet(), Training(lr=0.01, optimiser=Adam(), epochs=3))
    assert "at the most: correct training.lr" in said(found, lr=0.001)


@pytest.mark.parametrize("model", [lenet, wild, normalised, learnt])
def test_a_step_far_beyond_other_images_is_named(model: Callable[[], nn.Module]) -> None:
    found = trained(model(), TRAINING)
    huge = {name: u / max(float(u.norm()), 1e-30) * 1e4 for name, u in found.update.items()}
    assert "within reason: correct training.lr" in said(replace(found, update=huge))


def test_clipped_steps_have_a_longest_way() -> None:
    found = trained(lenet(), replace(TRAINING, epochs=3, clip=0.1))
    assert "within reason" in said(found, clip=0.05)


def test_a_message_far_too_small_is_named_where_the_network_is_sure_of_nothing() -> None:
    assert "the network is sure of none" in said(trained(lenet(), TRAINING), lr=50.0, epochs=40)
    assert said(trained(learnt(), TRAINING), lr=50.0, epochs=40) == ""


def test_clients_that_differ_are_not_compared() -> None:
    found = trained(normalised(), replace(TRAINING, batch_norm=BatchNorm.BATCH), mode=True)
    clients = tuple(ClientClaim(training, stated_examples=1) for training in (TRAINING, replace(TRAINING, lr=0.1)))
    assert contradictions(replace(found, clients=clients)) == ()
