"""Pictures that show the same in another contrast or place."""

from __future__ import annotations

import pytest
import torch

from fedglass.audit.scoring import likeness, shown_transformed
from fedglass.data.catalogue import photos

PHOTOS = photos().resized(16).images[:8]


@pytest.mark.parametrize("side", [16, 100])
def test_contrast_negatives_mirrors_and_places_do_not_matter(side: int) -> None:
    picture = photos().resized(side).images[:1]
    changed = [
        0.4 + 0.01 * picture,
        1 - picture,
        picture.flip(-1),
        picture.flip(-2, -1),
        picture.roll((4, 7), (-2, -1)),
    ]
    assert [shown_transformed(each, picture) for each in changed] == [[True]] * 5


def test_each_original_is_looked_for_in_all_images() -> None:
    assert shown_transformed(PHOTOS[[3, 0]].flip(-1), PHOTOS[:4]) == [True, False, False, True]


def test_other_photographs_and_noise_are_not_alike() -> None:
    for i in range(len(PHOTOS)):
        others = torch.cat([PHOTOS[:i], PHOTOS[i + 1 :], torch.rand(4, *PHOTOS.shape[1:])])
        assert shown_transformed(others, PHOTOS[i : i + 1]) == [False]


def test_what_is_flat_or_broken_is_like_nothing() -> None:
    flat, broken = torch.full_like(PHOTOS[:1], 0.3), torch.full_like(PHOTOS[:1], torch.nan)
    for nothing in (flat, broken, PHOTOS[:0]):
        assert likeness(nothing, PHOTOS[:1]) == [0.0]
        assert shown_transformed(torch.cat([nothing, PHOTOS[:1]]), PHOTOS[:1]) == [True]
    assert likeness(PHOTOS[:1], flat) == [0.0]
