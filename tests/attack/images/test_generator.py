"""Images out of a generator whose weights are the unknowns."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from fedglass.attack.images.latent import GeneratorWeights, block_widths
from fedglass.core.errors import UsageError
from fedglass.core.rng import stream
from fedglass.core.types import Observation, Whitening

SMALL = GeneratorWeights(width=4, code=3)


def shown(toy: Any, shape: tuple[int, int, int], examples: int = 2) -> Observation:
    """An observation that knows pictures of another shape; a generator asks for nothing else."""
    seen: Observation = toy.observation()
    whitening = Whitening((0.5,) * shape[0], (0.25,) * shape[0])
    return replace(seen, knows=replace(seen.knows, shape=shape, examples=examples, whitening=whitening))


def decoded(seen: Observation, seed: int = 0, images: GeneratorWeights = SMALL) -> Tensor:
    bound = images.bind(seen, stream(seed, "g"), None)
    return bound.decode([u.start for u in bound.unknowns])


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 4, 4), (3, 32, 32), (3, 28, 20), (1, 3, 5), (3, 64, 64)])
@pytest.mark.parametrize("examples", [1, 3])
def test_pictures_have_the_known_shape_and_lie_inside_the_bounds(
    toy: Any, shape: tuple[int, int, int], examples: int
) -> None:
    seen = shown(toy, shape, examples)
    images = decoded(seen)
    assert images.shape == (1, examples, *shape)
    pixels = seen.knows.whitening.unwhiten(images)
    assert 0 <= float(pixels.min()) < float(pixels.max()) <= 1


def test_other_sides_are_resized_or_cropped_from_the_centre(toy: Any) -> None:
    whole, part = shown(toy, (1, 8, 8)), shown(toy, (1, 6, 5))
    cropped = decoded(part, images=replace(SMALL, crop=True))
    assert torch.equal(cropped, decoded(whole)[..., 1:7, 1:6])
    assert not torch.equal(cropped, decoded(part)), "resized"
    assert torch.equal(decoded(whole), decoded(whole, images=replace(SMALL, crop=True)))


def test_each_example_has_a_picture_of_its_own(toy: Any) -> None:
    images = decoded(shown(toy, (1, 8, 8), 3))[0]
    assert not torch.allclose(images[0], images[1], atol=1e-3)
    assert not torch.allclose(images[1], images[2], atol=1e-3)


def test_the_same_seed_repeats_and_another_differs(toy: Any) -> None:
    seen = shown(toy, (3, 8, 8))
    assert torch.equal(decoded(seen), decoded(seen))
    assert not torch.equal(decoded(seen), decoded(seen, seed=1))


def test_every_weight_is_an_unknown_without_bounds_of_the_type_of_the_message(toy: Any) -> None:
    seen = shown(toy, (3, 16, 16))
    seen = replace(seen, update={name: t.double() for name, t in seen.update.items()})
    bound = SMALL.bind(seen, stream(0, "g"), None)
    blocks = len(block_widths(4, 16))
    assert len(bound.unknowns) == 3 + 6 * blocks + 2
    assert {u.start.dtype for u in bound.unknowns} == {torch.float64}
    assert all(u.low is None and u.high is None for u in bound.unknowns)


def test_a_generator_can_not_start_from_pictures(toy: Any) -> None:
    seen = shown(toy, (1, 8, 8))
    with pytest.raises(UsageError, match="make its stage the first"):
        SMALL.bind(seen, stream(0, "g"), decoded(seen))
