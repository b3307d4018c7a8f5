"""A tiny local step for the defences to act on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedglass.core.rng import stream
from fedglass.core.tensors import weights_of
from fedglass.core.types import BatchNorm
from fedglass.fl.local import Step
from fedglass.models.network import Network


@dataclass(frozen=True, eq=False)
class NumberedStep(Step):
    """A step that knows where in the training it is."""

    index: int = 0
    place: int = 0


def step_of(model: nn.Module, examples: int, batch_norm: BatchNorm = BatchNorm.FROZEN) -> NumberedStep:
    """A step of that many 1x4x4 images, with weights and images of their own seeds."""
    for name, parameter in model.named_parameters():
        parameter.data = 0.5 * torch.randn(parameter.shape, generator=stream(0, name))
    network = Network(model, {n: b for n, b in model.named_buffers() if b.is_floating_point()}, batch_norm)
    weights = [w.requires_grad_() for w in weights_of(model).values()]
    inputs = torch.randn(examples, 1, 4, 4, generator=stream(0, "images"))
    return NumberedStep(network, weights, inputs, torch.arange(examples) % 3, generator=stream(0, "noise"))


def small_cnn() -> nn.Module:
    """Two convolution channels, six hidden units, three classes."""
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.Tanh(), nn.Flatten(), nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 3))


@pytest.fixture
def step() -> NumberedStep:
    """A step of the small network with four examples."""
    return step_of(small_cnn(), examples=4)


@pytest.fixture
def make_step() -> Callable[..., NumberedStep]:
    return step_of


def _one_by_one(step: Step) -> list[list[Tensor]]:
    losses = [
        F.cross_entropy(step.network(step.weights, step.inputs[i : i + 1]), step.targets[i : i + 1])
        for i in range(len(step.inputs))
    ]
    return [[g.detach() for g in torch.autograd.grad(loss, list(step.weights))] for loss in losses]


@pytest.fixture
def one_by_one() -> Callable[[Step], list[list[Tensor]]]:
    """Slow oracle: the gradient of each example by a backward pass of its own."""
    return _one_by_one
