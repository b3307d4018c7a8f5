"""What metrics refuse, and what they make of broken reconstructions."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fedglass.core.errors import DataError
from fedglass.core.rng import stream
from fedglass.metrics.images import MOST_RANGES, pair, psnr, rmse, ssim

METRICS = [psnr, rmse, ssim]


def images(*shape: int, name: str = "images") -> Tensor:
    return torch.rand(*shape, generator=stream(0, name))


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize(
    ("guess", "truth", "said"),
    [
        (images(3, 16, 16), images(3, 16, 16), r"\(n, c, h, w\), got shape \(3, 16, 16\)"),
        (images(2, 1, 16, 16), images(3, 1, 16, 16), r"got \(2, 1, 16, 16\) and \(3, 1, 16, 16\)"),
        (images(2, 1, 16, 16), images(2, 1, 16, 16) * 255, r"in \[0, 1\], got \[.*whitening"),
        (images(2, 1, 16, 16), images(2, 1, 16, 16) - 0.5, r"in \[0, 1\], got \["),
        (images(2, 1, 16, 16), images(2, 1, 16, 16) * torch.nan, "finite original images, got NaN"),
        (images(2, 1, 16, 16).byte(), images(2, 1, 16, 16), "reconstructed images as floats.*torch.uint8"),
        (images(0, 1, 16, 16), images(0, 1, 16, 16), "at least one original image, got none"),
        (images(1, 1, 0, 16), images(1, 1, 0, 16), r"got shape \(1, 1, 0, 16\)"),
    ],
)
def test_refusals_name_what_was_expected_and_what_came(metric, guess: Tensor, truth: Tensor, said: str):
    with pytest.raises(DataError, match=f"^Expected .*{said}"):
        metric(guess, truth)


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("broken", [torch.nan, torch.inf, -torch.inf])
def test_an_all_broken_image_scores_no_better_than_any_image_in_the_range(metric, broken: float):
    truth = images(1, 3, 16, 16)
    sign = -1.0 if metric is rmse else 1.0
    worst = sign * metric(torch.full_like(truth, broken), truth)
    assert torch.isfinite(worst).all()
    for guess in (images(1, 3, 16, 16, name="g"), torch.zeros_like(truth), torch.ones_like(truth), 1 - truth):
        assert worst <= sign * metric(guess, truth) + 1e-12


@pytest.mark.parametrize("metric", METRICS)
def test_one_broken_pixel_lowers_a_score_but_does_not_hide_the_leak(metric):
    truth = images(2, 1, 16, 16)
    guess = (truth + 0.01 * images(2, 1, 16, 16, name="noise")).clamp(0, 1)
    damaged = guess.clone()
    damaged[0, 0, 8, 8] = torch.nan
    sign = -1.0 if metric is rmse else 1.0
    whole, broken = sign * metric(guess, truth), sign * metric(damaged, truth)
    unrelated = sign * metric(images(2, 1, 16, 16, name="other"), truth)
    assert unrelated[0] < broken[0] < whole[0]
    assert broken[1] == whole[1]


@pytest.mark.parametrize("metric", METRICS)
def test_diverged_pixels_give_finite_scores(metric):
    truth = images(1, 1, 16, 16).double()
    assert torch.isfinite(metric(torch.full_like(truth, 1e300), truth)).all()
    assert psnr(torch.full_like(truth, -1e300), truth).item() == pytest.approx(-60, abs=0.01)
    assert MOST_RANGES == 1e3


def test_arguments_are_neither_changed_nor_tracked():
    truth, guess = images(1, 1, 16, 16), images(1, 1, 16, 16, name="g").requires_grad_()
    kept = guess.detach().clone()
    for metric in METRICS:
        assert not metric(guess, truth).requires_grad
    assert torch.equal(guess.detach(), kept)


def test_rounding_outside_the_range_is_no_error():
    truth = torch.tensor([[[[-1e-6, 1 + 1e-6]]]])
    assert pair(truth, truth)[1].shape == truth.shape
