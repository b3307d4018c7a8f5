"""Images as unknowns."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from fedglass.attack.images.pixels import BoundedEpochPixels, EpochPixels, FreePixels, OrderedEpochPixels, Pixels
from fedglass.attack.parts import Images
from fedglass.core.errors import UsageError
from fedglass.core.rng import stream
from fedglass.core.types import Training
from fedglass.federation.views import Knows

FEDAVG = Training(0.1, epochs=3, batch_size=2)
ROWS: list[tuple[Images, int]] = [(Pixels(), 1), (FreePixels(), 1), (EpochPixels(), 3), (BoundedEpochPixels(), 3)]


@pytest.mark.parametrize(("images", "rows"), ROWS, ids=repr)
def test_a_start_is_standard_normal_in_whitened_coordinates(toy: Any, images: Images, rows: int) -> None:
    seen = toy.observation(FEDAVG, examples=40)
    (unknown,) = images.bind(seen, stream(0, "i"), None).unknowns
    assert unknown.start.shape == (rows, 40, 1, 8, 8)
    noise = torch.randn(rows, 40, 1, 8, 8, generator=stream(0, "i"))
    if isinstance(images, Pixels | BoundedEpochPixels):
        low, high = (0 - 0.4) / 0.3, (1 - 0.4) / 0.3
        noise = noise.clamp(low, high)
        assert unknown.low is not None
        assert unknown.high is not None
        assert (float(unknown.low), float(unknown.high)) == pytest.approx((low, high))
    else:
        assert unknown.low is None
        assert unknown.high is None
    torch.testing.assert_close(unknown.start, noise)


@pytest.mark.parametrize(("images", "rows"), ROWS, ids=repr)
@pytest.mark.parametrize("before", [1, 3])
def test_a_later_stage_starts_where_the_earlier_ended(toy: Any, images: Images, rows: int, before: int) -> None:
    seen = toy.observation(FEDAVG)
    earlier = toy.images(before * 4, "earlier").view(before, 4, 1, 8, 8)
    bound = images.bind(seen, stream(0, "i"), earlier)
    found = bound.decode([u.start for u in bound.unknowns])
    assert found.shape == (rows, 4, 1, 8, 8)
    assert torch.equal(found[0], earlier[0])
    if before == rows:
        assert torch.equal(found, earlier)
    kept = earlier.clone()
    for unknown in bound.unknowns:
        assert unknown.start.is_contiguous()
    assert torch.equal(earlier, kept)


@pytest.mark.parametrize(("images", "rows"), ROWS, ids=repr)
def test_the_type_of_the_message_is_kept(toy: Any, images: Images, rows: int) -> None:
    seen = toy.observation(FEDAVG)
    double = replace(seen, update={name: t.double() for name, t in seen.update.items()})
    (unknown,) = images.bind(double, stream(0, "i"), None).unknowns
    assert {t.dtype for t in (unknown.start, unknown.low, unknown.high) if t is not None} == {torch.float64}


@pytest.mark.parametrize("images", [EpochPixels(), BoundedEpochPixels()], ids=repr)
@pytest.mark.parametrize("before", [None, 1, 3])
def test_epochs_that_are_not_shuffled_share_their_images(toy: Any, images: Images, before: int | None) -> None:
    seen = toy.observation(replace(FEDAVG, shuffle=False))
    earlier = None if before is None else toy.images(before * 4, "earlier").view(before, 4, 1, 8, 8)
    (unknown,) = images.bind(seen, stream(0, "i"), earlier).unknowns
    assert unknown.start.shape == (1, 4, 1, 8, 8)


def test_an_epoch_that_is_cut_short_has_images_too(toy: Any) -> None:
    seen = toy.observation(Training(0.1, batch_size=2, steps=5))
    (unknown,) = EpochPixels().bind(seen, stream(0, "i"), None).unknowns
    assert unknown.start.shape == (3, 4, 1, 8, 8)


def test_separate_epochs_need_to_know_how_many(toy: Any) -> None:
    with pytest.raises(UsageError, match="knows_training"):
        EpochPixels().bind(toy.observation(FEDAVG, Knows(training=False)), stream(0, "i"), None)


def test_told_batches_take_the_earlier_images_to_where_their_labels_are(toy: Any) -> None:
    """The k-th image of a class in the first epoch is the k-th of it in every other."""
    seen = toy.observation(FEDAVG, Knows(batch_labels=True), examples=6)
    batches = ((0, 4), (1, 4), (2, 0), (4, 0), (0, 1), (4, 2), (1, 2), (0, 0), (4, 4))
    seen = replace(seen, knows=replace(seen.knows, batch_labels=batches))
    earlier = toy.images(6, "earlier")[None]
    (unknown,) = OrderedEpochPixels().bind(seen, stream(0, "i"), earlier).unknowns
    (plain,) = BoundedEpochPixels().bind(seen, stream(0, "i"), earlier).unknowns
    orders = [[0, 1, 2, 3, 4, 5], [1, 0, 5, 2, 3, 4], [2, 4, 0, 5, 1, 3]]
    assert torch.equal(unknown.start, torch.stack([plain.start[0][order] for order in orders]))
    assert torch.equal(
        OrderedEpochPixels().bind(seen, stream(0, "i"), None).unknowns[0].start,
        BoundedEpochPixels().bind(seen, stream(0, "i"), None).unknowns[0].start,
    )
