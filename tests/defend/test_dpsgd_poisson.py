"""DP-SGD on Poisson samples."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fedglass.core.errors import UsageError
from fedglass.core.types import Training
from fedglass.defend.accounting import Mechanism
from fedglass.defend.dpsgd import DPSGD, PoissonDPSGD
from fedglass.defend.noise_model import NoiseModel, noise_model
from fedglass.fl.local import Step
from fedglass.fl.release import Protection


def flat(part: DPSGD, step: Step) -> Tensor:
    return torch.cat([g.detach().reshape(-1) for g in part.gradient(step)])


def test_a_sample_of_all_is_dpsgd(step: Step) -> None:
    torch.testing.assert_close(flat(PoissonDPSGD(0.5, 0.0, 1.0), step), flat(DPSGD(0.5, 0.0), step))


def test_the_sample_is_right_on_average_and_different_each_time(step: Step) -> None:
    whole = flat(DPSGD(0.5, 0.0), step)
    drawn = torch.stack([flat(PoissonDPSGD(0.5, 0.0, 0.3), step) for _ in range(600)])
    spread = drawn.std(dim=0) / 600**0.5
    assert float(((drawn.mean(dim=0) - whole).abs() / spread.clamp(min=1e-8)).max()) < 5
    empty = float((drawn == 0).all(dim=1).double().mean())
    assert empty == pytest.approx(0.7**4, abs=4 * (0.24 * 0.76 / 600) ** 0.5)


@pytest.mark.parametrize("rate", [1e-9, 0.5])
def test_noise_is_that_of_the_expected_size(step: Step, rate: float) -> None:
    """z C / (q B), also where nobody is in the sample."""
    drawn = torch.stack([flat(PoissonDPSGD(1e-6, 2e6, rate), step) for _ in range(100)])
    assert float(drawn.std()) == pytest.approx(2 / (rate * 4), rel=0.03)


def test_only_samples_of_all_examples_gain() -> None:
    shield = Protection(gradient=PoissonDPSGD(1.0, 2.0, 0.1))
    whole = noise_model(shield, Training(lr=0.1, steps=9), 50)
    sliced = noise_model(shield, Training(lr=0.1, steps=10, batch_size=10), 50)
    assert isinstance(whole, NoiseModel)
    assert isinstance(sliced, NoiseModel)
    assert (whole.samples, whole.per_round) == (Mechanism(2.0, 0.1, 9), 1.5)
    assert (sliced.samples, sliced.per_round) == (None, pytest.approx(2**0.5 / 2))
    assert not whole.additive


@pytest.mark.parametrize("rate", [0.0, 1.5, -0.1])
def test_what_is_no_rate_is_refused(rate: float) -> None:
    with pytest.raises(UsageError, match="sample_rate"):
        PoissonDPSGD(1.0, 1.0, rate)
