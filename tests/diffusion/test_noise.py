from __future__ import annotations

import pytest
import torch

from fedglass.core.errors import UsageError
from fedglass.diffusion.denoiser import SHAPES, Prediction, Schedule, betas, drawn_steps, noise_in


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


@pytest.mark.parametrize("shape", SHAPES)
def test_noise_grows_and_the_share_of_the_image_is_a_product(shape: str) -> None:
    schedule = Schedule(steps=50, shape=shape)
    left, slow = 1.0, []
    for beta in betas(schedule).tolist():
        left *= 1 - beta
        slow.append(left)
    assert torch.allclose(schedule.abar, torch.tensor(slow, dtype=torch.float64))
    assert (schedule.sigma[1:] > schedule.sigma[:-1]).all()


@pytest.mark.parametrize("prediction", Prediction)
def test_the_right_answer_gives_the_clean_image_and_its_noise(
    prediction: Prediction, generator: torch.Generator
) -> None:
    schedule, steps = Schedule(), torch.tensor([0, 300, 700])
    images, noise = torch.rand(3, 1, 4, 4, generator=generator).double() * 2 - 1, torch.randn(3, 1, 4, 4).double()
    kept = schedule.abar_of(steps, images)
    noisy = schedule.noised(images, steps, noise)
    clean = prediction.clean(prediction.target(images, noise, kept), noisy, kept)
    assert torch.allclose(clean, images)
    assert torch.allclose(noise_in(noisy, clean, kept), noise)


def test_noised_images_in_their_own_units_are_off_by_sigma(generator: torch.Generator) -> None:
    schedule, steps = Schedule(), torch.tensor([500])
    noisy = schedule.noised(torch.zeros(1, 1, 100, 100), steps, torch.randn(1, 1, 100, 100, generator=generator))
    assert float((noisy / schedule.abar_of(steps, noisy).sqrt()).std()) == pytest.approx(
        float(schedule.sigma[500]), rel=0.03
    )


def test_the_step_of_a_steps_own_noise_is_that_step() -> None:
    schedule = Schedule(steps=200)
    assert torch.equal(schedule.step_of(schedule.sigma), torch.arange(200))
    assert schedule.step_of(torch.tensor([1e-9, 1e9])).tolist() == [0, 199]


def test_half_of_the_drawn_steps_are_of_weak_noise(generator: torch.Generator) -> None:
    schedule = Schedule()
    sigma = schedule.sigma[drawn_steps(schedule, 4000, generator)]
    assert float((sigma[1::2] < 1).float().mean()) == pytest.approx(0.476, abs=0.03)  # ln(1/0.01) / ln(157/0.01)
    assert float((sigma[0::2] < 1).float().mean()) < 0.3


@pytest.mark.parametrize(
    "wrong", [{"steps": 1}, {"steps": 10**9}, {"first": 0.0}, {"first": 0.5, "last": 0.1}, {"shape": "wavy"}]
)
def test_what_is_no_schedule_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(UsageError, match="noise schedule"):
        Schedule(**wrong)  # type: ignore[arg-type]
