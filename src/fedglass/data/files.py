"""Files of data sets, which may be damaged or hostile: no more bytes are read than were announced."""

from __future__ import annotations

import gzip
import io
import math
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedglass.core.errors import DataError
from fedglass.core.files import follow_links, open_file
from fedglass.data.dataset import check_images

MAX_BYTES = 1 << 30
"""The most bytes of a file, packed or unpacked, that a reader takes."""

MAX_VALUES = 1 << 28
"""Pixel values in one dataset: 1 GiB as float32, more than all of CIFAR."""

VOID = 255
"""The label of pixels without a class in a mask; `ignore_index = 255` leaves them out of the loss."""

_GZIP = b"\x1f\x8b"


@contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """Open a file, unpacked on the fly where it is gzip; errors become a DataError."""
    try:
        with open_file(follow_links(path)) as raw:
            packed = raw.read(2) == _GZIP
            raw.seek(0)
            # GzipFile has all that readers use of BinaryIO, but does not declare it.
            yield cast(BinaryIO, gzip.GzipFile(fileobj=raw)) if packed else raw
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{path}: the gzip data is truncated or corrupt ({error}): fetch the file again.") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error}).") from None


def contents(path: Path, limit: int = MAX_BYTES) -> bytes:
    """Return all bytes of a file (unpacked where it is gzip), refused beyond the limit."""
    with opened(path) as file:
        data = _up_to(file, limit + 1)
    if len(data) > limit:
        raise DataError(
            f"{path}: holds more than {limit} bytes, which is the most that is read: keep a part of it in a "
            "smaller file."
        )
    return data


def _up_to(file: BinaryIO, count: int) -> bytes:
    """Return at most `count` bytes, read in pieces: memory follows the real length, not the announced one."""
    pieces = []
    while count > 0 and (piece := file.read(min(count, 1 << 20))):
        pieces.append(piece)
        count -= len(piece)
    return b"".join(pieces)


def exactly(file: BinaryIO, count: int, path: Path) -> bytes:
    """Return the next `count` bytes, a number that the caller has checked against a limit."""
    data = _up_to(file, count)
    if len(data) != count:
        raise DataError(f"{path}: truncated, expected {count} more bytes, got {len(data)}: fetch it again.")
    return data


def check_values(path: Path, shape: tuple[int, ...]) -> None:
    """Refuse an array that is too large, from its announced shape alone.

    >>> check_values(Path("x.npz"), (10**6, 10**6))
    Traceback (most recent call last):
    fedglass.core.errors.DataError: x.npz: announces 1000000 x 1000000 values, at most 268435456 are read...
    """
    if math.prod(shape) > MAX_VALUES:
        sides = " x ".join(map(str, shape))
        raise DataError(f"{path}: announces {sides} values, at most {MAX_VALUES} are read: keep a part of it.")


class Bounded(io.RawIOBase):
    """A stream that stops with an error, rather than go on, once it has given out `limit` bytes."""

    def __init__(self, file: BinaryIO, limit: int, path: Path) -> None:
        self._file, self._left, self._path = file, limit, path

    def read(self, size: int = -1) -> bytes:
        wanted = self._left + 1 if size < 0 else min(size, self._left + 1)
        data = self._file.read(wanted)
        self._left -= len(data)
        if self._left < 0:
            raise DataError(f"{self._path}: unpacks to more than is read at most; it is damaged or hostile.")
        return data


Array = NDArray[Any]

MAX_CLASSES = 1 << 16
"""The last layer of a network grows with the classes, so that one absurd label could exhaust the memory."""


def image_tensor(path: Path, array: Array) -> Tensor:
    """Return pixels in [0, 1], channels first; uint8 is divided by 255, floats are taken as they are.

    Grey images may come without channels; channels are looked for last, then first.

    >>> image_tensor(Path("x"), np.full((2, 5, 4, 3), 255, np.uint8)).shape
    torch.Size([2, 3, 5, 4])
    """
    check_values(path, array.shape)
    placed = _channels_first(path, array)
    if placed.dtype != np.uint8 and placed.dtype.kind != "f":
        raise DataError(f"{path}: images must be uint8, or floats in [0, 1], got {placed.dtype}.")
    images = torch.from_numpy(placed if placed.flags.writeable else np.array(placed)).float()
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
    """Return whole numbers of shape (n,); a trailing side of 1, as MedMNIST has it, is dropped.

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


def target_tensor(path: Path, array: Array) -> Tensor:
    """Return the labels, or targets of a loss without one class for each image.

    Columns of whole numbers are labels that hold or not, as ChestMNIST has them. Floats are numbers to be predicted.
    Whole numbers of shape (n, h, w) are the classes of pixels.

    >>> target_tensor(Path("x"), np.array([[1, 0, 1]], np.uint8)), target_tensor(Path("x"), np.array([0.5])).shape
    (tensor([[1., 0., 1.]]), torch.Size([1, 1]))
    """
    if array.dtype.kind == "f" and 1 <= array.ndim <= 4 and array.size:
        return torch.from_numpy(np.array(array if array.ndim > 1 else array[:, None], np.float32))
    if array.dtype.kind in "iu" and array.ndim == 2 and array.shape[1] > 1 and len(array):
        return torch.from_numpy(np.array(array, np.float32))
    if array.dtype.kind in "iu" and array.ndim == 3 and array.size:
        return torch.from_numpy(array.astype(np.int64))
    return label_tensor(path, array)


def class_count(path: Path, labels: Tensor) -> int:
    """Return the highest label plus one, for data without a number of classes; of numbers their columns.

    In masks 255 is the void between the classes, as in PASCAL VOC, unless 254 is a class.
    """
    if labels.is_floating_point():
        return labels.shape[1]
    has_void = labels.ndim == 3 and int(labels.max()) == VOID and not bool((labels == VOID - 1).any())
    used = labels[labels != VOID] if has_void else labels
    classes = (int(used.max()) if len(used) else 0) + 1
    if classes > MAX_CLASSES:
        raise DataError(
            f"{path}: the label {classes - 1} would mean {classes} classes, at most {MAX_CLASSES} are read: "
            "number the classes from 0."
        )
    return classes
