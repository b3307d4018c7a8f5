"""Sampling without chance, and that its end is affine in its start where the noise predictions are constants."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fedglass.core.errors import UsageError
from fedglass.core.rng import stream
from fedglass.diffusion.denoiser import Denoiser
from fedglass.diffusion.deterministic import end_of, slope, spaced_steps
from fedglass.diffusion.noise import Prediction, Schedule

SCHEDULE = Schedule(steps=50, last=0.2)
SHAPE = (2, 1, 4, 4)


def drawn(name: str) -> Tensor:
    return torch.randn(SHAPE, generator=stream(0, name), dtype=torch.float64)


def test_with_constant_noise_predictions_the_end_is_the_start_times_the_slope_and_a_constant() -> None:
    noise = drawn("noise")
    denoiser = Denoiser(lambda noisy, steps, labels: noise, SCHEDULE, Prediction.EPSILON, clamp=False)
    one, other = drawn("one"), drawn("other")
    ends = [end_of(denoiser, start, 7) for start in (one, other)]
    assert torch.allclose(ends[1] - ends[0], slope(SCHEDULE) * (other - one))
    assert torch.allclose(ends[0], slope(SCHEDULE) * one - SCHEDULE.sigma[-1] * noise)


@pytest.mark.parametrize("count", [2, 5, 50])
def test_a_network_that_knows_the_image_is_led_to_it(count: int) -> None:
    image = drawn("image").tanh()
    denoiser = Denoiser(lambda noisy, steps, labels: image, SCHEDULE, Prediction.SAMPLE)
    assert torch.allclose(end_of(denoiser, drawn("start"), count), image)


def test_it_follows_the_flow_of_gaussian_data() -> None:
    """Data N(0, s^2): the exact flow maps x_T to x_T s / sqrt(abar_T s^2 + 1 - abar_T)."""
    s2 = 0.25
    schedule = Schedule(steps=4000, first=2.5e-5, last=5e-3)

    def clean(noisy: Tensor, steps: Tensor, labels: Tensor | None) -> Tensor:
        kept = schedule.kept(steps, noisy)
        return kept.sqrt() * s2 * noisy / (kept * s2 + 1 - kept)

    last, first, start = float(schedule.abar[-1]), float(schedule.abar[0]), drawn("start")
    found = end_of(Denoiser(clean, schedule, Prediction.SAMPLE, clamp=False), start, 4000)
    assert torch.allclose(found, start * (s2 / (last * s2 + 1 - last)) ** 0.5, rtol=0.01)
    assert first > 0.999


def test_steps_run_from_the_last_to_the_first() -> None:
    assert spaced_steps(SCHEDULE, 2) == [49, 0]
    assert spaced_steps(SCHEDULE, 50) == list(range(49, -1, -1))
    for count in (1, 51):
        with pytest.raises(UsageError, match=f"between 2 and 50 steps with this model, got {count}"):
            spaced_steps(SCHEDULE, count)
