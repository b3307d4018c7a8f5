"""Opacus as oracle; skipped where it is not installed."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from fedglass.core.rng import stream
from fedglass.core.tensors import weights_of
from fedglass.core.types import BatchNorm
from fedglass.defend.accounting import Mechanism, clt_epsilon, gaussian_epsilon, prv_epsilon, rdp_epsilon
from fedglass.defend.per_example import example_gradients
from fedglass.fl.local import Step
from fedglass.models.network import Network

pytest.importorskip("opacus")
DELTA = 1e-5


@pytest.mark.filterwarnings("ignore")
def test_example_gradients_are_those_of_opacus() -> None:
    from opacus import GradSampleModule

    model = nn.Sequential(
        nn.Conv2d(1, 2, 3), nn.GroupNorm(1, 2), nn.Sigmoid(), nn.Flatten(), nn.Linear(8, 5), nn.ReLU(), nn.Linear(5, 3)
    )
    inputs, targets = torch.randn(4, 1, 4, 4, generator=stream(0, "images")), torch.tensor([0, 1, 2, 1])
    weights = [w.requires_grad_() for w in weights_of(model).values()]
    (found,) = example_gradients(Step(Network(model, {}, BatchNorm.FROZEN), weights, inputs, targets))
    watched = GradSampleModule(model, loss_reduction="sum")
    nn.functional.cross_entropy(watched(inputs), targets, reduction="sum").backward()
    torch.testing.assert_close(found, [p.grad_sample for p in model.parameters()])


def test_the_approximation_lies_below_the_bounds() -> None:
    run = Mechanism(noise_multiplier=1.1, sample_rate=0.01, steps=1000)
    clt, prv, rdp = (f(run, DELTA) for f in (clt_epsilon, prv_epsilon, rdp_epsilon))
    assert clt < prv < rdp


@pytest.mark.filterwarnings("ignore:GDP accounting")
def test_the_approximation_is_that_of_opacus() -> None:
    from opacus.accountants import GaussianAccountant

    accountant = GaussianAccountant()
    accountant.history = [(0.8, 0.05, 200)]
    assert clt_epsilon(Mechanism(0.8, 0.05, 200), DELTA) == pytest.approx(accountant.get_epsilon(DELTA), rel=1e-6)


@pytest.mark.parametrize("noise", [0.3, 1.0, 4.0])
def test_bounds_lie_above_the_exact_budget(noise: float) -> None:
    run = Mechanism(noise, sample_rate=1.0, steps=2)
    exact = gaussian_epsilon(run, DELTA)
    assert exact <= prv_epsilon(run, DELTA) <= exact + 0.03
    assert exact <= rdp_epsilon(run, DELTA) <= 1.2 * exact


def test_noise_beyond_the_numerical_accountant_is_still_bounded() -> None:
    weak = Mechanism(0.01, sample_rate=1.0, steps=1)
    assert prv_epsilon(weak, DELTA) == math.inf
    assert gaussian_epsilon(weak, DELTA) < rdp_epsilon(weak, DELTA) < math.inf
