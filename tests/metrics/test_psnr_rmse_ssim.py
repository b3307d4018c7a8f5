"""PSNR, RMSE and SSIM against scikit-image, and their laws."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from skimage import metrics as reference
from torch import Tensor

from fedglass.core.errors import DataError
from fedglass.core.rng import stream
from fedglass.metrics.images import MOST_DECIBELS, psnr, rmse, ssim

SHAPES = [(3, 1, 28, 28), (2, 3, 32, 32), (2, 3, 11, 17), (1, 4, 40, 23)]


def smooth_and_noisy(shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    generator = stream(7, *shape)
    coarse = torch.rand(*shape[:2], 4, 4, generator=generator)
    truth = torch.nn.functional.interpolate(coarse, shape[2:], mode="bilinear", align_corners=False)
    return truth + 0.15 * torch.randn(shape, generator=generator), truth  # leaves [0, 1] on purpose


def skimage_ssim(guess: Tensor, truth: Tensor) -> list[float]:
    return [
        reference.structural_similarity(
            y.double().numpy(),
            x.double().numpy(),
            gaussian_weights=True,
            sigma=1.5,
            use_sample_covariance=False,
            data_range=1,
            channel_axis=0,
        )
        for x, y in zip(guess, truth, strict=True)
    ]


@pytest.mark.parametrize("shape", SHAPES)
def test_agree_with_scikit_image(shape):
    guess, truth = smooth_and_noisy(shape)
    pairs = [(x.double().numpy(), y.double().numpy()) for x, y in zip(guess, truth, strict=True)]
    np.testing.assert_allclose(ssim(guess, truth), skimage_ssim(guess, truth), atol=1e-12)
    decibels = [reference.peak_signal_noise_ratio(y, x, data_range=1) for x, y in pairs]
    np.testing.assert_allclose(psnr(guess, truth), decibels, rtol=1e-12)
    roots = [math.sqrt(reference.mean_squared_error(y, x)) for x, y in pairs]
    np.testing.assert_allclose(rmse(guess, truth), roots, rtol=1e-12)


def test_ssim_agrees_with_scikit_image_on_photographs(shared_data: Path):
    photos = torch.from_numpy(np.load(shared_data / "cifar10_10k.npz")["test_images"][:6] / 255.0)
    photos = photos.permute(0, 3, 1, 2)
    np.testing.assert_allclose(ssim(photos.flip(0), photos), skimage_ssim(photos.flip(0), photos), atol=1e-12)


@given(st.floats(0.001, 1.0))
@settings(deadline=None, max_examples=50)
def test_psnr_of_a_shift_is_minus_20_log10_of_it(shift: float):
    truth = torch.zeros(1, 1, 3, 3, dtype=torch.float64)
    found = psnr(truth + shift, truth).item()
    assert found == pytest.approx(-20 * math.log10(shift), abs=1e-9)


def test_psnr_of_equal_images_is_the_cap_and_far_worse_ones_go_below_zero():
    truth = torch.full((1, 1, 3, 3), 0.5)
    assert psnr(truth, truth).item() == MOST_DECIBELS
    assert psnr(truth + 1e-9, truth).item() == MOST_DECIBELS
    assert psnr(truth + 10, truth).item() == pytest.approx(-20, abs=1e-4)


@pytest.mark.parametrize("metric", [psnr, rmse, ssim])
def test_symmetric_and_blind_to_the_rest_of_the_batch(metric):
    a, b = (x.clamp(0, 1) for x in smooth_and_noisy((4, 3, 16, 16)))
    both = metric(a, b)
    torch.testing.assert_close(metric(b, a), both)
    torch.testing.assert_close(torch.cat([metric(a[i : i + 1], b[i : i + 1]) for i in range(4)]), both)
    order = [2, 0, 3, 1]
    torch.testing.assert_close(metric(a[order], b[order]), both[order])


def test_ssim_is_one_for_equal_images_falls_with_noise_and_is_negative_for_negatives():
    truth = smooth_and_noisy((3, 3, 24, 24))[1]
    torch.testing.assert_close(ssim(truth, truth), torch.ones(3, dtype=torch.float64))
    noise = torch.randn(truth.shape, generator=stream(1, "noise"))
    curve = torch.stack([ssim(truth + s * noise, truth) for s in (0.0, 0.02, 0.1, 0.5)])
    assert (curve.diff(dim=0) < 0).all()
    checks = (torch.arange(12)[:, None] + torch.arange(12)).remainder(2).float()[None, None]
    assert ssim(1 - checks, checks).item() < -0.9


def test_ssim_refuses_images_smaller_than_its_window():
    with pytest.raises(DataError, match=r"Expected images of at least 11 x 11 .* got 8 x 20"):
        ssim(torch.zeros(1, 1, 8, 20), torch.zeros(1, 1, 8, 20))
