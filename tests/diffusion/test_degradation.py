"""Degradations in their spectral basis against the plain operations."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from fedglass.core.errors import UsageError
from fedglass.core.rng import stream
from fedglass.diffusion.ddrm import Bicubic, BlockMean, Degradation, Enlarged, Noise, Spectrum

ALL: list[Degradation] = [BlockMean(2), BlockMean(4), BlockMean(8), Bicubic(2), Bicubic(4), Bicubic(8), Enlarged(2)]
IMAGES = torch.rand(2, 3, 16, 32, generator=stream(0, "images")).double()


def test_means_of_blocks_are_those_of_pooling() -> None:
    for factor in (2, 4, 8):
        assert torch.allclose(Spectrum.of(BlockMean(factor), 16, 32).degraded(IMAGES), F.avg_pool2d(IMAGES, factor))


def test_the_bicubic_reduction_is_torchs_with_its_wider_filter() -> None:
    for factor in (2, 4, 8):
        small = F.interpolate(IMAGES, (16 // factor, 32 // factor), mode="bicubic", antialias=True)
        narrow = F.interpolate(IMAGES, (16 // factor, 32 // factor), mode="bicubic")
        found = Spectrum.of(Bicubic(factor), 16, 32).degraded(IMAGES)
        assert torch.allclose(found, small)
        assert not torch.allclose(found, narrow, atol=1e-2)


@pytest.mark.parametrize("part", [*ALL, Noise()], ids=repr)
def test_the_basis_is_orthonormal_and_measures_what_is_known(part: Degradation) -> None:
    spectrum = Spectrum.of(part, 16, 32)
    turned = spectrum.coordinates(IMAGES)
    assert torch.allclose(spectrum.images(turned), IMAGES)
    assert torch.allclose(turned.square().sum(), IMAGES.square().sum())
    known = spectrum.singular > 0
    assert torch.allclose(spectrum.measured(spectrum.degraded(IMAGES))[..., known], turned[..., known])
    assert not spectrum.measured(spectrum.degraded(IMAGES))[..., ~known].any()


@pytest.mark.parametrize(("part", "smallest"), [(BlockMean(4), 0.25), (BlockMean(2), 0.5), (Noise(), 1.0)], ids=repr)
def test_as_many_singular_values_as_pixels_are_known(part: Degradation, smallest: float) -> None:
    singular = Spectrum.of(part, 16, 32).singular
    assert int((singular > 0).sum()) == Spectrum.of(part, 16, 32).degraded(IMAGES)[0, 0].numel()
    assert float(singular[singular > 0].min()) == pytest.approx(smallest)


def test_no_data_of_a_bicubic_reduction_are_taken_for_lost() -> None:
    singular = Spectrum.of(Bicubic(4), 32, 32).singular
    assert int((singular > 0).sum()) == 64
    assert float(singular[singular > 0].min()) < 0.3


def test_an_enlarged_picture_is_read_back_exactly() -> None:
    small = torch.rand(1, 1, 8, 16, generator=stream(1, "small")).double()
    large = F.interpolate(small, (16, 32), mode="bicubic", align_corners=False)
    assert torch.allclose(Spectrum.of(Enlarged(2), 16, 32).read(large), small)
    assert not torch.allclose(Spectrum.of(BlockMean(2), 16, 32).read(large), small, atol=1e-3)


@pytest.mark.parametrize("part", [BlockMean(3), Bicubic(5), BlockMean(0), Enlarged(16)], ids=repr)
def test_a_factor_that_does_not_fit_is_refused(part: Degradation) -> None:
    with pytest.raises(UsageError, match="cannot be reduced by the factor"):
        Spectrum.of(part, 16, 32)
