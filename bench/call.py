"""A call of a network whose weights are given, beside a call of the module itself."""

from __future__ import annotations

from functools import partial

import torch

from bench.timing import side_by_side
from fedglass.core.rng import stream
from fedglass.core.tensors import weights_of
from fedglass.core.types import BatchNorm
from fedglass.models.catalogue import build
from fedglass.models.network import Network


def measure() -> list[tuple[str, str, str]]:
    model = build("lenet", shape=(3, 32, 32), classes=10).requires_grad_(False)
    network = Network(model, {}, BatchNorm.FROZEN)
    weights = list(weights_of(model).values())
    image = torch.rand(1, 3, 32, 32, generator=stream(0, "image"))
    runs = {"given": partial(network, weights, image), "own": partial(model, image)}
    seconds = side_by_side(runs, 2000)
    more = 1e6 * (seconds["given"] - seconds["own"])
    return [
        ("lenet: a call with weights that are given", f"{more:.1f} µs more than with its own", "at most 15 µs more")
    ]
