"""The idx files of MNIST and its relatives, plain or gzip: a pair of images and labels."""

from __future__ import annotations

import math
import struct
from pathlib import Path

import numpy as np

from fedglass.core.errors import DataError
from fedglass.core.registry import register
from fedglass.data.arrays import Array, class_count, image_tensor, label_tensor
from fedglass.data.dataset import Dataset
from fedglass.data.files import check_values, exactly, opened
from fedglass.data.whitening import measured

_UBYTE = 8


@register("datasets", "idx", summary="images of MNIST's format (plain or gz) with their labels beside them")
def read_idx(path: Path, split: str = "train") -> Dataset:
    """Images and the labels beside them; `path` is the images' file, or a folder that holds such pairs."""
    images_path = _find(path, split) if path.is_dir() else path
    labels_path = _partner(images_path)
    images = image_tensor(images_path, _array(images_path, sides=3))
    labels = label_tensor(labels_path, _array(labels_path, sides=1))
    return Dataset(
        name=images_path.name.split(".")[0],
        images=images,
        labels=labels,
        classes=class_count(labels_path, labels),
        whitening=measured(images),
        credit=f"Read from {images_path.name}.",
    )


def _array(path: Path, sides: int) -> Array:
    """The header announces the shape; the file must be exactly as long as that."""
    with opened(path) as file:
        zero, kind, found = struct.unpack(">HBB", exactly(file, 4, path))
        if zero != 0 or kind != _UBYTE or found != sides:
            raise DataError(
                f"{path}: expected an idx file of unsigned bytes with {sides} sides (magic 0, 8, {sides}), "
                f"got magic {zero}, {kind}, {found}: give the images' file, with the labels' file beside it."
            )
        shape = struct.unpack(f">{sides}I", exactly(file, 4 * sides, path))
        check_values(path, shape)
        raw = exactly(file, math.prod(shape), path)
        if file.read(1):
            raise DataError(f"{path}: longer than its header announces ({shape}): it is damaged.")
    return np.frombuffer(raw, np.uint8).reshape(shape)


def _find(folder: Path, split: str) -> Path:
    prefix = "train" if split == "train" else "t10k"
    found = sorted(folder.glob("*images*idx3*"))
    named = [p for p in found if p.name.startswith((prefix, split))]
    if not named and len(found) == 1 and split == "train":
        return found[0]
    if not named:
        raise DataError(f"{folder}: expected {prefix}-images-idx3-ubyte or the same with .gz, found none.")
    return named[0]


def _partner(images: Path) -> Path:
    name = images.name.replace("images", "labels").replace("idx3", "idx1")
    plain = name.removesuffix(".gz")
    beside = [images.with_name(n) for n in (name, plain, plain + ".gz")]
    for path in beside:
        if path != images and path.is_file():
            return path
    raise DataError(f"{images}: expected the labels beside it as {plain} or {plain}.gz, found neither: put them there.")
