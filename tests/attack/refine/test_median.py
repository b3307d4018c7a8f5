"""The median filter against an explicit loop."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from fedglass.attack.parts import Refinement
from fedglass.attack.refine.restoration import MedianFilter
from fedglass.core.errors import UsageError
from fedglass.core.rng import stream
from fedglass.core.types import Knowledge, Whitening

IMAGES = torch.rand(2, 3, 7, 6, generator=stream(0, "images"))


def given(images: Tensor) -> Refinement:
    knows = Knowledge((3, 7, 6), 2, len(images), Whitening((0.0,), (1.0,)))
    return Refinement(images, torch.zeros(len(images)).long(), knows, stream(0, "x"))


@pytest.mark.parametrize("size", [3, 5])
def test_each_pixel_is_the_median_of_its_neighbourhood(size: int) -> None:
    pad = size // 2
    around = F.pad(IMAGES, (pad,) * 4, mode="reflect")
    slow = torch.empty_like(IMAGES)
    for i in range(7):
        for j in range(6):
            slow[..., i, j] = around[..., i : i + size, j : j + size].reshape(2, 3, -1).median(-1).values
    assert torch.equal(MedianFilter(size).refine(given(IMAGES)), slow)


def test_size_one_changes_nothing_and_an_outlier_is_gone() -> None:
    assert torch.equal(MedianFilter(1).refine(given(IMAGES)), IMAGES)
    flat = torch.full((1, 1, 6, 6), 0.5)
    flat[..., 2, 3] = 9.0
    assert torch.equal(MedianFilter(3).refine(given(flat)), torch.full((1, 1, 6, 6), 0.5))


@pytest.mark.parametrize("size", [0, -1, 4])
def test_a_neighbourhood_has_a_middle(size: int) -> None:
    with pytest.raises(UsageError, match=f"odd and at least 1, got {size}"):
        MedianFilter(size)


def test_pictures_must_be_larger_than_the_border() -> None:
    with pytest.raises(UsageError, match="larger than 2 x 2"):
        MedianFilter(5).refine(given(torch.zeros(1, 1, 2, 8)))
