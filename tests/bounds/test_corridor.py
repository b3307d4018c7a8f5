"""The PSNR that noise leaves to an adversary without a prior."""

from __future__ import annotations

import math

import pytest
import torch

from fedglass.bounds.mechanisms import expected_psnr
from fedglass.core.errors import UsageError
from fedglass.core.rng import stream

PIXELS = 3072
NORM = 0.5 * math.sqrt(PIXELS)


@pytest.mark.parametrize(("noise", "psnr"), [(0.001, 31.15), (0.002, 25.13), (0.004, 19.11), (0.01, 11.15)])
def test_check_values(noise: float, psnr: float) -> None:
    assert expected_psnr(PIXELS, NORM, noise) == pytest.approx(psnr, abs=5e-3)


@pytest.mark.parametrize("pixels", [4, 300])
def test_a_clipped_and_noised_picture_has_that_psnr(pixels: int) -> None:
    """The adversary scales what it reads back by the norm that it knows."""
    generator, draws, clip, noise = stream(0, "corridor", pixels), 20_000, 3.0, 0.02
    picture = torch.rand(pixels, generator=generator, dtype=torch.float64)
    norm = float(picture.norm())
    sent = picture * clip / norm + clip * noise * torch.randn(draws, pixels, generator=generator, dtype=torch.float64)
    psnr = -10 * (sent * norm / clip - picture).square().mean(dim=1).log10()

    assert expected_psnr(pixels, norm, noise) == pytest.approx(
        float(psnr.mean()), abs=4 * float(psnr.std()) / math.sqrt(draws)
    )


def test_more_noise_and_a_larger_peak_move_it_as_decibels() -> None:
    base = expected_psnr(PIXELS, NORM, 0.01)

    assert base - expected_psnr(PIXELS, NORM, 0.1) == pytest.approx(20)
    assert expected_psnr(PIXELS, NORM, 0.01, peak=10.0) - base == pytest.approx(20)


def test_without_noise_all_is_read() -> None:
    assert expected_psnr(PIXELS, NORM, 0.0) == math.inf


@pytest.mark.parametrize(
    ("pixels", "norm", "noise", "peak"), [(0, 1, 1, 1), (1, -1, 1, 1), (1, 1, -1, 1), (1, 1, 1, 0)]
)
def test_what_is_no_picture_is_refused(pixels: int, norm: float, noise: float, peak: float) -> None:
    with pytest.raises(UsageError):
        expected_psnr(pixels, norm, noise, peak)
