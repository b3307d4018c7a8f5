"""Noise of the declared size does not let a truth pass that lacks what was trained on."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from fedglass.audit.strangers import strangers
from torch import Tensor

from fedglass.audit.replay import Declared, Part, as_declared, played
from fedglass.core.params import weights_of
from fedglass.core.rng import stream
from fedglass.core.types import Training, Whitening
from fedglass.data.photos import photos
from fedglass.defend.gaussian_noise import GaussianNoise
from fedglass.fl.protection import Protection
from fedglass.models.catalogue import build
from fedglass.models.init import Uniform

STD = 0.1


def declared(*rows: int, clients: int = 1) -> Declared:
    """What clients with these photographs are said to have sent: nothing yet."""
    data, model = photos().resized(12), build("lenet", shape=(3, 12, 12), classes=10, init=Uniform())
    shield, before = Protection(release=GaussianNoise(STD)), weights_of(model)
    own = data.subset(list(rows))
    part = Part(own.images, own.labels, Training(lr=0.01), shield)
    whitening = Whitening((0.5,) * 3, (0.25,) * 3)
    return Declared(model, before, {}, before, whitening, (part,) * clients)


def length(update: dict[str, Tensor]) -> float:
    return float(torch.cat([tensor.flatten() for tensor in update.values()]).norm())


def sent(of: Declared, share: float = 0.0, other: Declared | None = None, seed: int = 0) -> Declared:
    """The message under its noise, with another's in it that is as long as a share of the noise."""
    own, beside = played(of), played(of if other is None else other)
    assert own is not None
    assert beside is not None
    noise = {name: STD * torch.randn(t.shape, generator=stream(seed, "noise", name)) for name, t in own.items()}
    scale = share * length(noise) / length(beside)
    return replace(of, update={name: t + noise[name] + scale * beside[name] for name, t in own.items()})


@pytest.mark.parametrize("clients", [1, 2])
def test_under_noise_alone_nobody_stands_out(clients: int) -> None:
    for seed in range(5):
        message = sent(declared(0, 3, clients=clients), seed=seed)
        assert strangers(message, message.parts[0].labels, 10) == ()


@pytest.mark.parametrize("share", [0.15, 0.3])
def test_an_example_that_the_truth_lacks_stands_out_where_the_noise_is_as_declared(share: float) -> None:
    other = declared(5)
    message = sent(declared(0), share, other)
    replayed = as_declared(message)
    assert replayed is not None
    assert replayed.explained
    assert strangers(message, other.parts[0].labels, 10)
    assert strangers(message, message.parts[0].labels, 10), "whatever labels the attack has found"
