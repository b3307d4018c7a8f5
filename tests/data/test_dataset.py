"""A dataset refuses what an audit could not use, and its views agree with plain indexing."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fedglass.core.errors import DataError
from fedglass.core.rng import stream
from fedglass.core.types import Whitening
from fedglass.data.dataset import Dataset

GREY = Whitening((0.5,), (0.25,))


def make(**changes: Any) -> Dataset:
    fields: dict[str, Any] = {
        "name": "toy",
        "images": torch.rand(6, 1, 4, 5, generator=stream(0, "toy")),
        "labels": torch.tensor([0, 1, 2, 0, 1, 2]),
        "classes": 3,
        "whitening": GREY,
        "class_names": ("a", "b", "c"),
        "writers": torch.tensor([0, 0, 1, 1, 2, 2]),
    }
    return Dataset(**(fields | changes))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"images": torch.zeros(6, 4, 5)}, r"shape \(n, channels, height, width\).*\(6, 4, 5\)"),
        ({"images": torch.zeros(0, 1, 4, 5)}, "no empty side"),
        ({"images": torch.zeros(6, 1, 4, 5, dtype=torch.uint8)}, "float32.*uint8"),
        ({"images": torch.full((6, 1, 4, 5), float("nan"))}, "NaN"),
        ({"images": torch.full((6, 1, 4, 5), float("inf"))}, "infinity"),
        ({"images": torch.full((6, 1, 4, 5), 255.0)}, r"\[0, 1\], got \[255, 255\].*divide by 255"),
        ({"images": torch.full((6, 1, 4, 5), -0.1)}, r"\[0, 1\], got \[-0.1"),
        ({"images": torch.zeros(6, 3, 4, 5)}, "one mean per channel, expected 3, got 1"),
        ({"labels": torch.tensor([0, 1, 2])}, "each of 6 images, got 3"),
        ({"labels": torch.tensor([0, 1, 2, 0, 1, 3])}, r"\[0, 3\).*got 0 to 3"),
        ({"labels": torch.tensor([0, 1, 2, 0, 1, -1])}, "got -1 to 2"),
        ({"labels": torch.zeros(6)}, "int64"),
        ({"class_names": ("a",)}, "expected 3 class names.*got 1"),
        ({"writers": torch.zeros(5, dtype=torch.int64)}, "writers must be int64"),
    ],
)
def test_refuses(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(DataError, match=says):
        make(**changes)


def test_subset_is_indexing() -> None:
    data, chosen = make(), [4, 0, 3]
    part = data.subset(chosen)
    assert torch.equal(part.images, data.images[chosen])
    assert part.labels.tolist() == [1, 0, 0]
    assert part.writers is not None
    assert part.writers.tolist() == [2, 0, 1]
    assert (part.name, part.classes, part.class_names) == (data.name, data.classes, data.class_names)


@pytest.mark.parametrize("chosen", [[], [6], [-1]])
def test_subset_refuses_positions_outside(chosen: list[int]) -> None:
    with pytest.raises(DataError, match="positions"):
        make().subset(chosen)


def test_take_everything_is_the_identity_and_more_is_refused() -> None:
    data = make()
    assert torch.equal(data.take(6).images, data.images)
    for n in (7, 0):
        with pytest.raises(DataError, match=f"{n} examples were asked for, expected between 1 and 6"):
            data.take(n)


def test_relabelled_reaches_all_classes_and_says_so() -> None:
    data = make(images=torch.zeros(2000, 1, 2, 2), labels=torch.zeros(2000, dtype=torch.int64), writers=None)
    drawn = data.relabelled(62, stream(1, "labels"))
    assert sorted(set(drawn.labels.tolist())) == list(range(62))
    assert torch.equal(drawn.labels, data.relabelled(62, stream(1, "labels")).labels)
    assert not torch.equal(drawn.labels, data.relabelled(62, stream(2, "labels")).labels)
    assert "labels drawn from 62" in drawn.name
    assert drawn.class_names is None
    assert drawn.images is data.images


def test_resizing_keeps_constants_and_means_and_avoids_aliasing() -> None:
    flat = make(images=torch.full((6, 1, 16, 12), 0.3)).resized((5, 7))
    assert flat.shape == (1, 5, 7)
    assert torch.allclose(flat.images, torch.full_like(flat.images, 0.3))
    stripes = torch.zeros(6, 1, 32, 32)
    stripes[..., ::2] = 1  # picking every fourth pixel would give all white
    shrunk = make(images=stripes).resized(8)
    assert torch.allclose(shrunk.images, torch.full_like(shrunk.images, 0.5), atol=0.1)
    with pytest.raises(DataError, match="at least 1 pixel"):
        make().resized(0)
