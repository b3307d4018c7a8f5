"""Gradients of single examples, and their sketches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedglass.checks.example_sketches import PLACES, Reader
from fedglass.core.rng import stream
from fedglass.core.tensors import Params, buffers_of, flatten, weights_of
from fedglass.core.types import BatchNorm
from fedglass.defend.per_example import example_gradients
from fedglass.federation.truth import Examples
from fedglass.fl.local import Step
from fedglass.models.network import Network

from .games import GREY, ONE_STEP, sent, toy


@pytest.fixture(scope="module")
def records() -> Examples:
    return toy(16, seed=2)


class _Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(4, 4, 3, padding=1, groups=2, bias=False), nn.BatchNorm2d(4)
        self.group, self.layer = nn.GroupNorm(2, 4), nn.LayerNorm(8)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.norm(self.first(inputs))
        hidden += inputs
        return self.layer(self.group(F.relu(hidden, inplace=True)))


class _Scaled(nn.Module):
    """A parameter outside of any known layer."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(8, 8))

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs * self.scale


def _mixed(*more: nn.Module) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        stem = nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(inplace=True), _Residual()
        model = nn.Sequential(*stem, *more, nn.Flatten(), nn.Linear(256, 6), nn.Tanh(), nn.Linear(6, 4))
        for parameter in model.parameters():
            parameter.data += 0.1 * torch.randn(parameter.shape)
    return model


def _gradients(network: Network, weights: Params, examples: Examples) -> Tensor:
    step = Step(network, [*weights.values()], GREY.whiten(examples.images), examples.labels)
    return torch.cat([torch.cat([g.flatten(1) for g in chunk], dim=1) for chunk in example_gradients(step)])


@pytest.mark.parametrize("more", [(), (_Scaled(),)], ids=["known layers", "a parameter of its own"])
def test_gradients_that_are_read_are_those_of_each_example(more: Sequence[nn.Module], records: Examples) -> None:
    model = _mixed(*more)
    network = Network(model, buffers_of(model), BatchNorm.FROZEN)
    found, along = Reader(network, weights_of(model)).read(
        GREY.whiten(records.images), records.labels, [[*weights_of(model).values()]]
    )
    true = _gradients(network, weights_of(model), records)
    assert found.shape[1] == true.shape[1] < PLACES
    torch.testing.assert_close(found @ found.T, true @ true.T, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(along[:, 0].float(), true @ flatten(weights_of(model)), rtol=1e-4, atol=1e-5)


def test_in_batch_mode_the_parts_of_a_batch_add_up_to_its_gradient(records: Examples) -> None:
    model = _mixed()
    message = sent(model, replace(ONE_STEP, batch_norm=BatchNorm.BATCH), records)
    reader = Reader(Network(model, buffers_of(model), BatchNorm.BATCH), message.before)
    found, _ = reader.read(GREY.whiten(records.images), records.labels)
    torch.testing.assert_close(-0.05 * found.mean(0), reader.sketch([*message.update.values()]), rtol=1e-3, atol=1e-6)


def test_sketches_of_large_layers_are_linear_and_keep_products(records: Examples) -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 700), nn.ReLU(), nn.Linear(700, 4))
    network = Network(model, {}, BatchNorm.FROZEN)
    reader, weights = Reader(network, weights_of(model)), weights_of(model)
    found, _ = reader.read(GREY.whiten(records.images), records.labels)
    true = _gradients(network, weights, records)
    assert found.shape[1] == PLACES < true.shape[1]
    update = sent(model, ONE_STEP, records).update
    torch.testing.assert_close(reader.sketch([*update.values()]), -0.05 * found.mean(0), rtol=1e-3, atol=1e-6)
    sizes = true.norm(dim=1)
    error = (found @ found.T - true @ true.T) / (sizes[:, None] * sizes)
    assert error.square().mean().sqrt() < 2 / PLACES**0.5
    shares = torch.rand(len(sizes), generator=stream(0, "shares"))
    whole = reader.weighted_sum(GREY.whiten(records.images), records.labels, shares)
    torch.testing.assert_close(torch.cat([t.flatten() for t in whole]), shares @ true, rtol=1e-3, atol=1e-5)
