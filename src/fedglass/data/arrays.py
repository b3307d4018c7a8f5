"""From the arrays that files hold to the tensors of a dataset."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedglass.core.errors import DataError
from fedglass.data.dataset import check_images
from fedglass.data.files import check_values

Array = NDArray[Any]

MAX_CLASSES = 1 << 16
"""The last layer of a network grows with the classes, so that one absurd label could exhaust the memory."""


def image_tensor(path: Path, array: Array) -> Tensor:
    """Pixels in [0, 1], channels first; uint8 is divided by 255, floats are taken as they are.

    Grey images may come without channels; channels are looked for last, then first.

    >>> image_tensor(Path("x"), np.full((2, 5, 4, 3), 255, np.uint8)).shape
    torch.Size([2, 3, 5, 4])
    """
    check_values(path, array.shape)
    placed = _channels_first(path, array)
    if placed.dtype != np.uint8 and placed.dtype.kind != "f":
        raise DataError(f"{path}: images must be uint8, or floats in [0, 1], got {placed.dtype}.")
    images = torch.from_numpy(np.array(placed)).float()
    scaled = images.div_(255) if placed.dtype == np.uint8 else images
    check_images(str(path), scaled)
    return scaled


def _channels_first(path: Path, array: Array) -> Array:
    if array.ndim == 3:
        return array[:, None]
    if array.ndim == 4 and array.shape[3] in (1, 3):
        return array.transpose(0, 3, 1, 2)
    if array.ndim == 4 and array.shape[1] in (1, 3):
        return array
    raise DataError(
        f"{path}: images must have shape (n, h, w), (n, h, w, c) or (n, c, h, w) with c of 1 or 3, got {array.shape}."
    )


def label_tensor(path: Path, array: Array, what: str = "labels") -> Tensor:
    """Whole numbers of shape (n,); a trailing side of 1, as MedMNIST has it, is dropped.

    >>> label_tensor(Path("x"), np.array([[1], [0]], np.uint8))
    tensor([1, 0])
    """
    flat = array[:, 0] if array.ndim == 2 and array.shape[1] == 1 else array
    if flat.ndim != 1 or flat.dtype.kind not in "iu" or flat.size == 0:
        raise DataError(
            f"{path}: {what} must be whole numbers of shape (n,), got {array.dtype} of shape {array.shape}."
        )
    if int(flat.min()) < 0 or int(flat.max()) >= 1 << 31:
        raise DataError(f"{path}: {what} must lie in [0, 2^31), got {int(flat.min())} to {int(flat.max())}.")
    return torch.from_numpy(flat.astype(np.int64))


def class_count(path: Path, labels: Tensor) -> int:
    """The highest label plus one, where nobody says how many classes there are."""
    classes = int(labels.max()) + 1
    if classes > MAX_CLASSES:
        raise DataError(
            f"{path}: the label {classes - 1} would mean {classes} classes, at most {MAX_CLASSES} are read: "
            "number the classes from 0."
        )
    return classes
