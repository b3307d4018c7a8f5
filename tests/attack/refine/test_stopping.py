"""When the search for a start is over."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fedglass.attack.refine.masked_diffusion import (
    Flattening,
    NoiseLevel,
    OracleEpoch,
    SearchState,
    WhiteStart,
    agreement,
    noise_level_of,
)
from fedglass.core.errors import UsageError
from fedglass.core.rng import stream

SMOOTH = torch.linspace(0.2, 0.8, 40).expand(2, 1, 40, 40).clone()
STARTS = torch.randn(2, 1, 40, 40, generator=stream(0, "starts"))


def way(errors: list[list[float]], starts: Tensor = STARTS, raw: Tensor = SMOOTH) -> SearchState:
    return SearchState(torch.tensor(errors), starts, raw)


@pytest.mark.parametrize("sigma", [0.01, 0.1])
def test_the_noise_of_an_image_is_found_whatever_the_image_shows(sigma: float) -> None:
    large = torch.linspace(0.2, 0.8, 120).expand(2, 1, 120, 120)
    noise = torch.randn(large.shape, generator=stream(0, "noise"))
    assert noise_level_of(large + sigma * noise).tolist() == pytest.approx([sigma, sigma], rel=0.1)


def test_a_picture_as_near_as_the_noise_is_near_enough() -> None:
    noisy = SMOOTH + 0.1 * torch.randn(SMOOTH.shape, generator=stream(0, "noise"))
    assert NoiseLevel().stops(way([[0.02, 0.005]], raw=noisy)).tolist() == [False, True]
    assert NoiseLevel(factor=4).stops(way([[0.02, 0.005]], raw=noisy)).tolist() == [True, True]


def test_a_curve_that_has_become_flat_is_told_from_one_that_falls() -> None:
    rule = Flattening(share=0.1, over=2)
    assert rule.stops(way([[1.0, 1.0], [0.2, 0.8]])).tolist() == [False, False]  # too early to tell
    errors = [[1.0, 1.0], [0.2, 0.8], [0.18, 0.6], [0.17, 0.4]]
    assert rule.stops(way(errors)).tolist() == [True, False]


def test_a_curve_that_goes_up_and_down_is_judged_by_its_lowest_points() -> None:
    assert Flattening(0.1, 2).stops(way([[1.0], [0.2], [0.5], [0.3]])).tolist() == [True]


def test_white_noise_is_told_from_noise_with_a_picture_in_it() -> None:
    pushed = torch.stack([STARTS[0], STARTS[1] + 2 * SMOOTH[1] - 0.5])
    assert WhiteStart().stops(way([[1.0, 1.0]], starts=pushed)).tolist() == [False, True]
    assert not WhiteStart().stops(way([[1.0, 1.0]], starts=torch.stack([STARTS[0], -1.5 * STARTS[1]]))).any()


def test_the_agreement_of_white_noise_is_standard_normal_and_that_of_stripes_is_negative() -> None:
    found = agreement(torch.randn(500, 2, 7, 9, generator=stream(0, "many")))
    assert (float(found.mean()), float(found.std())) == (pytest.approx(0, abs=0.2), pytest.approx(1, abs=0.1))
    stripes = torch.ones(1, 1, 6, 6)
    stripes[..., ::2] = -1
    assert float(agreement(stripes)) == pytest.approx(0.0, abs=1e-6)
    assert float(agreement(torch.ones(1, 1, 1, 1))) == 0.0


def test_an_epoch_that_was_told_is_kept_to() -> None:
    assert not OracleEpoch(1).stops(way([[1.0, 1.0]])).any()
    assert OracleEpoch(1).stops(way([[1.0, 1.0], [2.0, 0.1]])).all()
    assert OracleEpoch(0).stops(way([[1.0, 1.0]])).all()


def test_rules_without_sense_are_refused() -> None:
    with pytest.raises(UsageError, match="at least 1 epoch"):
        Flattening(over=0)
    with pytest.raises(UsageError, match="more than 0"):
        WhiteStart(0)
    with pytest.raises(UsageError, match="negative, got -1"):
        OracleEpoch(-1)
