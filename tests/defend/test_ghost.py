"""Differentially private SGD without a gradient of each example."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from fedglass.core.errors import ModelError, UsageError
from fedglass.core.rng import stream
from fedglass.core.types import BatchNorm
from fedglass.defend.dpsgd import DPSGD, GhostDPSGD
from fedglass.fl.local import Step
from fedglass.models.catalogue import build
from fedglass.models.network import Network


def flat(tensors: Sequence[Tensor]) -> Tensor:
    return torch.cat([t.detach().reshape(-1) for t in tensors])


class Tied(nn.Module):
    """A layer that is gone through twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(16, 16), nn.Linear(16, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        logits: Tensor = self.last(self.first(self.first(inputs.flatten(1))))
        return logits


@pytest.mark.parametrize("clip", [0.1, 0.9, 1e6])
def test_examples_are_clipped_one_by_one(
    step: Step, one_by_one: Callable[[Step], list[list[Tensor]]], clip: float
) -> None:
    slow = torch.zeros(sum(w.numel() for w in step.weights))
    for own in map(flat, one_by_one(step)):
        slow += own / max(1.0, float(own.norm()) / clip)
    torch.testing.assert_close(flat(GhostDPSGD(clip, 0.0).clipped_sum(step)), slow)


@pytest.mark.parametrize("name", ["lenet5", "lenet_tanh"])
def test_it_is_dpsgd_with_the_same_noise(name: str) -> None:
    model = build(name, shape=(1, 28, 28), classes=10)
    network = Network(model, {}, BatchNorm.FROZEN)
    weights = [p.detach().clone().requires_grad_() for p in model.parameters()]
    images = torch.randn(7, 1, 28, 28, generator=stream(0, "images"))
    step = Step(network, weights, images, torch.arange(7), generator=stream(0, "noise"), smoothing=0.1)
    quick = GhostDPSGD(0.5, 3.0).gradient(step)
    slow = DPSGD(0.5, 3.0).gradient(replace(step, generator=stream(0, "noise")))
    torch.testing.assert_close(list(quick), list(slow), atol=1e-6, rtol=1e-4)
    assert not torch.equal(
        flat(quick), flat(GhostDPSGD(0.5, 3.0).gradient(replace(step, generator=stream(1, "noise"))))
    )


@pytest.mark.parametrize(
    "layer", [nn.Conv2d(1, 2, 3, stride=2, padding=1), nn.Conv2d(1, 2, 2, dilation=2), nn.Conv2d(1, 2, 3, bias=False)]
)
def test_any_plain_convolution(make_step: Callable[..., Step], layer: nn.Conv2d) -> None:
    step = make_step(nn.Sequential(layer, nn.ReLU(), nn.Flatten(), nn.Linear(8, 3)), 3)
    slow = DPSGD(0.3, 0.0).gradient(step)
    torch.testing.assert_close(list(GhostDPSGD(0.3, 0.0).gradient(step)), list(slow))


@pytest.mark.parametrize(
    "model",
    [
        nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(8, 3)),
        nn.Sequential(nn.Conv2d(1, 2, 3, padding="same"), nn.Flatten(), nn.Linear(32, 3)),
        Tied(),
    ],
)
def test_networks_in_which_it_would_be_wrong_are_refused(make_step: Callable[..., Step], model: nn.Module) -> None:
    with pytest.raises(ModelError, match="choose DPSGD"):
        GhostDPSGD(1.0, 1.0).gradient(make_step(model, 2))


def test_its_options_are_those_of_dpsgd() -> None:
    with pytest.raises(UsageError):
        GhostDPSGD(0.0, 1.0)
    with pytest.raises(UsageError):
        GhostDPSGD(1.0, -1.0)
