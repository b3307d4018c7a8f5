"""Images at low resolution: enlargement, the nearest one that can be written, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from fedglass.attack.images.pixels import BoundedLowResolution, LowResolution
from fedglass.core.errors import UsageError
from fedglass.core.rng import stream
from fedglass.core.types import Observation
from fedglass.diffusion.ddrm import bicubic_matrix


@pytest.fixture(scope="module")
def seen(toy: Any) -> Observation:
    found: Observation = toy.observation(examples=3)
    return found


def test_the_unknowns_are_enlarged_by_bicubic_interpolation(seen: Observation) -> None:
    bound = LowResolution(4).bind(seen, stream(0, "x"), None)
    (unknown,) = bound.unknowns
    assert unknown.start.shape == (1, 3, 1, 2, 2)
    expected = F.interpolate(unknown.start[0], scale_factor=4, mode="bicubic", align_corners=False)
    torch.testing.assert_close(bound.decode([unknown.start])[0], expected)
    assert unknown.low is None
    assert unknown.high is None
    pixels = seen.knows.whitening.unwhiten(unknown.start)
    assert 0 <= float(pixels.min()) < float(pixels.max()) < 1  # U[0, 1) before whitening


@pytest.mark.parametrize("factor", [1, 2, 4])
def test_the_matrix_is_the_interpolation(factor: int) -> None:
    row = torch.rand(1, 1, 6, 5, dtype=torch.float64)
    across = bicubic_matrix(5, factor)
    down = bicubic_matrix(6, factor)
    expected = F.interpolate(row, scale_factor=factor, mode="bicubic", align_corners=False)
    torch.testing.assert_close(down @ row @ across.T, expected)


def test_nearest_is_the_least_squares_projection(seen: Observation) -> None:
    bound = LowResolution(2).bind(seen, stream(0, "x"), None)
    images = torch.randn(1, 3, 1, 8, 8, generator=torch.Generator().manual_seed(1))
    near = bound.nearest(images)
    torch.testing.assert_close(bound.nearest(near), near, rtol=1e-4, atol=1e-4)
    best = float((near - images).square().sum())
    small = F.avg_pool2d(images[0], 2)[None].requires_grad_()
    error = (bound.decode([small]) - images).square().sum()
    for _ in range(200):  # slow gradient descent comes to the same
        (g,) = torch.autograd.grad(error, small)
        small = (small - 0.1 * g).detach().requires_grad_()
        error = (bound.decode([small]) - images).square().sum()
    assert best == pytest.approx(float(error.detach()), rel=1e-3)


def test_an_image_that_can_be_written_is_its_own_nearest_and_a_stages_start(seen: Observation) -> None:
    first = LowResolution(2).bind(seen, stream(0, "x"), None)
    images = first.decode([u.start for u in first.unknowns])
    for part in (LowResolution(2), BoundedLowResolution(2)):
        later = part.bind(seen, stream(0, "y"), images)
        torch.testing.assert_close(later.decode([u.start for u in later.unknowns]), images, rtol=1e-3, atol=1e-3)


def test_the_bounded_unknowns_stay_in_their_box(seen: Observation) -> None:
    (unknown,) = BoundedLowResolution(2).bind(seen, stream(0, "x"), None).unknowns
    assert unknown.low is not None
    assert unknown.high is not None
    assert bool((unknown.start >= unknown.low).all())
    assert bool((unknown.start <= unknown.high).all())


def test_a_factor_that_does_not_divide_the_sides_is_refused(seen: Observation) -> None:
    with pytest.raises(UsageError, match="factor must divide the height and the width of the images, 8 and 8, got 3"):
        LowResolution(3).bind(seen, stream(0, "x"), None)
    wide = replace(seen, knows=replace(seen.knows, shape=(1, 8, 6)))
    with pytest.raises(UsageError, match="8 and 6, got 4: choose a common divisor"):
        BoundedLowResolution(4).bind(wide, stream(0, "x"), None)
    with pytest.raises(UsageError, match="factor must be a whole number of at least 1, got 0"):
        LowResolution(0)
