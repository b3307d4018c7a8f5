"""From inputs back to pixels."""

from __future__ import annotations

import pytest
import torch

from fedglass.core.errors import DataError
from fedglass.core.types import Whitening
from fedglass.recorders.client import measured_whitening, pixels_of, union_of_images


def pictures(seed: int = 0) -> torch.Tensor:
    """Pictures of 8 bits with black and white in every channel."""
    generator = torch.Generator().manual_seed(seed)
    images = torch.randint(256, (4, 3, 16, 16), generator=generator).float()
    images[0, :, 0, 0], images[0, :, 0, 1] = 0, 255
    return images / 255


@pytest.mark.parametrize(
    "whitening",
    [
        Whitening((0.0, 0.0, 0.0), (1.0, 1.0, 1.0)),
        Whitening((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
        Whitening((0.4914, 0.4822, 0.4465), (0.247, 0.2435, 0.2616)),
        Whitening((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    ],
)
def test_a_normalisation_is_found_in_the_numbers_and_undone(whitening: Whitening) -> None:
    images = pictures()

    found = measured_whitening(whitening.whiten(images))

    assert found is not None
    assert found.mean == pytest.approx(whitening.mean, abs=1e-5)
    assert found.std == pytest.approx(whitening.std, rel=1e-5)
    assert torch.allclose(pixels_of("a", whitening.whiten(images), found), images, atol=1e-5)


def test_what_lies_on_no_grid_is_not_guessed() -> None:
    smooth = torch.nn.functional.avg_pool2d(pictures(), 3, 1)
    assert measured_whitening(smooth) is None
    assert measured_whitening(torch.randn(2, 1, 16, 16)) is None


def test_pictures_without_black_or_white_are_not_guessed() -> None:
    pale = (pictures() * 255).clamp(20, 200).round() / 255

    found = measured_whitening(Whitening((0.5,) * 3, (0.25,) * 3).whiten(pale))

    assert found is None


def test_a_wrong_normalisation_is_refused() -> None:
    inputs = Whitening((0.5,) * 3, (0.25,) * 3).whiten(pictures())

    with pytest.raises(DataError, match="are not pictures under the normalisation"):
        pixels_of("a", inputs, Whitening((0.5,) * 3, (0.5,) * 3))


def test_of_two_rounds_each_example_is_kept_once() -> None:
    images = pictures()

    union, rows = union_of_images(images[:3], images[[3, 1, 1]])

    assert rows[:2] == [3, 1]
    assert torch.equal(union[rows], images[[3, 1, 1]])
    assert torch.equal(union[:3], images[:3])
