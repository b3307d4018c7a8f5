"""The json files of LEAF [Caldas et al., 2018]: FEMNIST, where a writer is a user."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor

from fedglass.core.errors import DataError
from fedglass.core.registry import register
from fedglass.data.arrays import Array, class_count, label_tensor
from fedglass.data.dataset import Dataset, check_images
from fedglass.data.files import check_values, contents
from fedglass.data.glyphs import CHARACTERS
from fedglass.data.whitening import FEMNIST, measured

_MOST = 256 << 20  # LEAF writes FEMNIST in files of about half of this; parsed, json takes many times its length


@register(
    "datasets",
    "leaf",
    summary="LEAF's json file or a folder of them, a writer per user",
    paper="Caldas et al.: LEAF: A Benchmark for Federated Settings, 2018, https://arxiv.org/abs/1812.01097",
)
def read_leaf(path: Path, split: str = "train") -> Dataset:
    """Grey square images in [0, 1] with one writer per user, from one json file or a folder of them.

    28x28 images with labels below 62 are taken for FEMNIST, with its class names and its whitening.
    """
    files = _files(path, split)
    pages = [page for file in files for page in _pages(file)]
    users = list(dict.fromkeys(user for user, _, _ in pages))
    number = {user: i for i, user in enumerate(users)}
    images = _images(path, [x for _, x, _ in pages])
    labels = torch.cat([y for _, _, y in pages])
    writers = torch.cat([torch.full((len(y),), number[user]) for user, _, y in pages])
    femnist = images.shape[2] == 28 and int(labels.max()) < len(CHARACTERS)
    return Dataset(
        name="femnist" if femnist else path.stem,
        images=images,
        labels=labels,
        classes=len(CHARACTERS) if femnist else class_count(path, labels),
        whitening=FEMNIST if femnist else measured(images),
        class_names=tuple(CHARACTERS) if femnist else None,
        writers=writers,
        credit=f"LEAF, read from {path.name}.",
    )


def _files(path: Path, split: str) -> list[Path]:
    if not path.is_dir():
        return [path]
    folder = path / split if (path / split).is_dir() else path
    files = sorted(folder.glob("*.json"))
    if not files:
        raise DataError(f"{folder}: expected LEAF's json files in it, found none.")
    return files


def _pages(path: Path) -> list[tuple[str, Array, Tensor]]:
    """Each user of one file with pixels (n, d) and labels (n,)."""
    data = _parsed(path).get("user_data")
    if not isinstance(data, dict) or not data:
        raise DataError(f"{path}: expected LEAF's 'user_data' with an entry per user, found none.")
    return [_page(path, user, entry) for user, entry in data.items()]


def _parsed(path: Path) -> dict[str, Any]:
    def refuse(constant: str) -> NoReturn:
        raise DataError(f"{path}: holds {constant}; expected pixels in [0, 1]. Clean the file.")

    try:
        value = json.loads(contents(path, _MOST), parse_constant=refuse)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: not readable as json ({error}): it is truncated or corrupt.") from None
    return value if isinstance(value, dict) else {}


def _page(path: Path, user: str, entry: object) -> tuple[str, Array, Tensor]:
    x, y = (entry.get("x"), entry.get("y")) if isinstance(entry, dict) else (None, None)
    try:
        pixels, labels = np.array(x, dtype=np.float64), np.array(y)
    except (ValueError, TypeError, OverflowError):
        pixels, labels = np.zeros(0), np.zeros(0)
    if pixels.ndim != 2 or pixels.size == 0 or len(pixels) != len(np.atleast_1d(labels)):
        raise DataError(
            f"{path}: user {user!r} must have 'x' as equally long rows of pixels and 'y' with a label for each row."
        )
    return user, pixels, label_tensor(path, labels, f"labels of user {user!r}")


def _images(path: Path, pages: list[Array]) -> Tensor:
    lengths = {x.shape[1] for x in pages}
    length = min(lengths)
    side = math.isqrt(length)
    if len(lengths) > 1 or side * side != length:
        raise DataError(f"{path}: expected grey square images, 784 pixels in FEMNIST, got rows of {lengths}.")
    check_values(path, (sum(len(x) for x in pages), length))
    images = torch.cat([torch.from_numpy(x).float() for x in pages]).view(-1, 1, side, side)
    check_images(str(path), images)
    return images
