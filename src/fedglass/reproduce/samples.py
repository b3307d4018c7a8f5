"""Photographs that stand in for the data of the coarse-to-fine paper, as squares of one size."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from fedglass.core.errors import DataError
from fedglass.data.catalogue import photos
from fedglass.data.dataset import Dataset, measured
from fedglass.data.files import contents
from fedglass.data.readers import read_npz
from fedglass.data.readers_of_pictures import read_picture

LABELS = "labels.csv"
MOST_ROWS = 10_000
TILE, STRIDE = 256, 128
STAINED = ("nct_crc*", "tcga_crc*")
"""Files of tissue stained with haematoxylin and eosin."""


def read_listed(path: Path, side: int) -> Dataset:
    """Read the pictures of one folder, with their classes in its labels.csv (columns file, class_index)."""
    table = contents(path / LABELS, 1 << 20).decode("utf-8", "replace")
    rows = list(csv.DictReader(io.StringIO(table)))[:MOST_ROWS]
    images, labels = [], []
    for number, row in enumerate(rows, 2):
        name, label = row.get("file") or "", row.get("class_index") or ""
        if not name or Path(name).name != name or not label.isdecimal() or int(label) >= 1 << 16:
            raise DataError(f"{path / LABELS}: line {number} must name a file of the folder and its class_index.")
        images.append(square(read_picture(path / name, None), side))
        labels.append(int(label))
    return _dataset(path.name, images, torch.tensor(labels))


def read_tiles(path: Path, side: int) -> Dataset:
    """Read overlapping squares of 256 pixels of stained tissue, each also mirrored; all of one class."""
    files = sorted(file for pattern in STAINED for file in path.glob(pattern))
    cut = [square(tile, side) for file in files for tile in _cut(read_picture(file, None))]
    return _dataset(path.name, [*cut, *(tile.flip(-1) for tile in cut)], torch.zeros(2 * len(cut), dtype=torch.int64))


def read_faces(path: Path, side: int) -> Dataset:
    """Read grey faces in three equal channels, the central square of each."""
    data = read_npz(path)
    images = [square(image.expand(3, -1, -1), side) for image in data.images]
    return _dataset(data.name, images, data.labels)


def enlarged_photos(path: Path, side: int) -> Dataset:
    """Return the embedded photographs and their mirror images, enlarged."""
    data = photos().resized(side)
    both = torch.cat([data.images, data.images.flip(-1)])
    return replace(data, images=both, labels=data.labels.repeat(2))


READERS: Mapping[str, Callable[[Path, int], Dataset]] = {
    "listed": read_listed,
    "tiles": read_tiles,
    "faces": read_faces,
    "photos": enlarged_photos,
}


def read_samples(source: str, side: int) -> Dataset | None:
    """Read the pictures of a source such as `faces:PATH`; return None if the source is of another kind.

    >>> len(read_samples("photos", 96))
    48
    """
    reader, _, path = source.partition(":")
    return READERS[reader](Path(path), side) if reader in READERS else None


def square(image: Tensor, side: int) -> Tensor:
    """Return the central square, resized with an anti-aliasing filter.  # (c, h, w) -> (c, side, side)"""
    height, width = image.shape[1:]
    short = min(height, width)
    first_row, first_column = (height - short) // 2, (width - short) // 2
    middle = image[None, :, first_row : first_row + short, first_column : first_column + short]
    return functional.interpolate(middle, (side, side), mode="bilinear", antialias=True).clamp(0, 1)[0]


def _cut(image: Tensor) -> list[Tensor]:
    """Cut squares of 256 pixels at every 128; a smaller picture is not cut."""
    height, width = image.shape[1:]
    if min(height, width) < TILE:
        return [image]
    places = [(y, x) for y in range(0, height - TILE + 1, STRIDE) for x in range(0, width - TILE + 1, STRIDE)]
    return [image[:, y : y + TILE, x : x + TILE] for y, x in places]


def _dataset(name: str, images: list[Tensor], labels: Tensor) -> Dataset:
    if not images:
        raise DataError(f"{name}: no pictures found.")
    stacked = torch.stack(images)
    return Dataset(name, stacked, labels, int(labels.max()) + 1, measured(stacked))
