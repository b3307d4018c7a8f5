"""The federations that are measured: small enough for a laptop, with the networks of the papers."""

from __future__ import annotations

import torch

from fedglass.core.rng import stream
from fedglass.core.types import Observation, Training, Whitening
from fedglass.data.catalogue import glyphs, photos
from fedglass.data.dataset import CIFAR100, FEMNIST
from fedglass.federation.client import Client
from fedglass.federation.federation import Federation, observe
from fedglass.federation.peer import PeerView
from fedglass.federation.truth import Truth
from fedglass.federation.views import Knows, ServerView
from fedglass.models.catalogue import build
from fedglass.models.init import LeCunTruncatedNormal, PyTorchDefault, Uniform


def colour(n: int, training: Training, network: str = "cifar_cnn", seed: int = 0) -> tuple[Observation, Truth]:
    """n photo crops at 32x32 with labels drawn from 100 classes; repeated, mirrored, where n is larger than the set."""
    images = photos().resized(32).images
    images = torch.cat([images, images.flip(-1), images.flip(-2)])[:n]
    labels = torch.randint(0, 100, (n,), generator=stream(seed, "labels"))
    init = Uniform() if network == "lenet" else PyTorchDefault()
    model = build(network, shape=(3, 32, 32), classes=100, init=init, seed=seed)
    federation = Federation(model, [Client("bench", images, labels)], training, 100, CIFAR100, seed=seed)
    return observe(federation, ServerView(), Knows(labels=True))


def peers(clients: int, each: int, training: Training, seed: int = 0) -> tuple[Observation, Truth]:
    """What one of several clients sees of the others' photo crops at 32x32, on the curious client's LeNet."""
    images = photos().resized(32).images
    images = torch.cat([images, images.flip(-1), images.flip(-2)])[: clients * each]
    labels = torch.randint(0, 100, (clients * each,), generator=stream(seed, "labels"))
    model = build("curious_lenet", shape=(3, 32, 32), classes=100, seed=seed)
    parts = zip(images.split(each), labels.split(each), strict=True)
    members = [Client(f"client {i}", x, y) for i, (x, y) in enumerate(parts)]
    federation = Federation(model, members, training, 100, Whitening((0.0,) * 3, (1.0,) * 3), seed=seed)
    return observe(federation, PeerView(0), Knows(labels=True))


def grey(n: int, training: Training, seed: int = 0) -> tuple[Observation, Truth]:
    """n characters of one writer with their own labels, on the FEMNIST network with DLFA's initialisation."""
    data = glyphs(writers=1, per_writer=n, seed=seed)
    model = build("femnist_cnn", shape=(1, 28, 28), classes=62, init=LeCunTruncatedNormal(), seed=seed)
    federation = Federation(model, [Client("bench", data.images, data.labels)], training, 62, FEMNIST, seed=seed)
    return observe(federation, ServerView(), Knows(labels=True))
