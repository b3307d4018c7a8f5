"""The sets that come with the package: what they hold, and that they can be made again."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from fedglass.core.errors import DataError
from fedglass.data.catalogue import CHARACTERS, glyphs, photos

ROOT = Path(__file__).resolve().parents[2]
EMBEDDED = ROOT / "src" / "fedglass" / "data" / "embedded"


def test_glyphs_hold_every_class_on_white_paper() -> None:
    data = glyphs(writers=20, per_writer=40)
    assert (data.classes, data.class_names) == (62, tuple(CHARACTERS))
    assert set(data.labels.tolist()) == set(range(62))
    ink = (data.images < 0.5).flatten(1).sum(1)
    assert int(ink.min()) >= 5, "a character has vanished"
    frame = torch.cat([data.images[..., 0, :], data.images[..., -1, :], data.images[..., 0], data.images[..., -1]])
    assert float(frame.min()) == 1.0, "a character is cut off at the border"
    assert abs(float(data.images.mean()) - 0.96424) < 0.03, "far from FEMNIST's mean"


def test_glyphs_do_not_move_when_more_are_asked_for() -> None:
    few, many = glyphs(writers=2, per_writer=3), glyphs(writers=4, per_writer=5)
    kept = [0, 1, 2, 5, 6, 7]
    assert torch.equal(few.images, many.images[kept])
    assert torch.equal(few.labels, many.labels[kept])
    assert not torch.equal(few.images, glyphs(writers=2, per_writer=3, seed=1).images)


def test_writers_have_styles_and_images_have_jitter() -> None:
    data = glyphs(writers=12, per_writer=150)
    assert data.writers is not None
    centres = _ink_centres(data.images)
    means = torch.stack([centres[data.writers == w].mean(0) for w in range(12)])
    spread = torch.stack([centres[data.writers == w].std(0) for w in range(12)]).mean()
    assert means.std(0).min() > spread / 150**0.5 * 3, "writers can not be told apart"
    same = (data.writers == 0) & (data.labels == data.labels[0])
    alike = data.images[same]
    assert len(alike) > 1
    assert not torch.equal(alike[0], alike[1])


def test_glyphs_refuse_nothing_to_draw() -> None:
    with pytest.raises(DataError, match="at least 1, got 0 and 60"):
        glyphs(writers=0)


def test_photos_are_distinct_and_full_of_structure() -> None:
    data = photos()
    assert len(data) == 24
    assert set(data.labels.tolist()) == set(range(10))
    assert len(set(data.take(10).labels.tolist())) == 10
    assert float(data.images.std((1, 2, 3)).min()) > 0.08, "a crop is flat"
    pixels = data.images.flatten(1)
    distances = torch.cdist(pixels, pixels) + 1e9 * torch.eye(len(data))
    assert float(distances.min()) > 1, "two crops are the same"


def test_photos_credit_every_source() -> None:
    sources = {tile["source"] for tile in json.loads((EMBEDDED / "photos.json").read_text())["tiles"]}
    credits = (EMBEDDED / "CREDITS.md").read_text(encoding="utf-8")
    assert all(f"| {source} |" in credits for source in sources)
    assert sum(file.stat().st_size for file in EMBEDDED.iterdir()) < 300_000


def test_photos_can_be_made_again() -> None:
    pytest.importorskip("skimage")
    spec = importlib.util.spec_from_file_location("make_photos", ROOT / "tools" / "make_photos.py")
    assert spec is not None
    assert spec.loader is not None
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    assert tool.index() == json.loads((EMBEDDED / "photos.json").read_text())
    with Image.open(EMBEDDED / "photos.png") as shipped:
        difference = np.abs(np.asarray(shipped, dtype=int) - np.asarray(tool.sheet(), dtype=int))
    # JPEG decoders may round differently.
    assert difference.max() <= 4


def _ink_centres(images: torch.Tensor) -> torch.Tensor:
    ink = 1 - images[:, 0]
    rows, columns = torch.meshgrid(torch.arange(28.0), torch.arange(28.0), indexing="ij")
    return torch.stack([(ink * axis).sum((1, 2)) / ink.sum((1, 2)) for axis in (rows, columns)], 1)
