"""npz archives of arrays, read without numpy's own loader so that no pickle is ever touched."""

from __future__ import annotations

import ast
import math
import re
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from torch import Tensor

from fedglass.core.errors import DataError
from fedglass.core.files import follow_links, open_file
from fedglass.core.registry import register
from fedglass.data.dataset import Dataset, measured
from fedglass.data.files import MAX_BYTES, Array, check_values, class_count, image_tensor, label_tensor, target_tensor

_IMAGES = ("images", "x", "data")
_LABELS = ("labels", "y", "targets", "subject_id")
TARGETS = "targets"
"""The array that may have the targets of any loss."""
_WRITERS = ("client_id", "writers", "writer", "user_id")
_MAGIC = b"\x93NUMPY"
_NUMBERS_OR_TEXT = re.compile(r"[<>|=]?([bui][1248]|f[248]|U\d{1,4})")
_BROKEN_ZIP = (
    zipfile.BadZipFile,
    zlib.error,
    EOFError,
    NotImplementedError,
    RuntimeError,
    ValueError,
    OSError,
)


@register("datasets", "npz", summary="arrays images/labels, x/y or train_images/train_labels; no pickles")
def read_npz(path: Path, split: str = "train") -> Dataset:
    """Arrays named images/labels, x/y or train_images/train_labels; client_id, if present, as writers.

    An array named targets may have the targets of other losses: (n, outputs) for several labels of an image or for
    numbers, (n, h, w) for the classes of pixels.
    """
    arrays = _arrays(path, split)
    images, labels = image_tensor(path, arrays["images"]), _labels(path, arrays)
    class_names = _class_names(path, arrays.get("class_names"))
    return Dataset(
        name=path.stem,
        images=images,
        labels=labels,
        classes=class_count(path, labels) if class_names is None else len(class_names),
        whitening=measured(images),
        class_names=class_names,
        writers=label_tensor(path, arrays["writers"], "writers") if "writers" in arrays else None,
        credit=f"Read from {path.name}.",
    )


def _labels(path: Path, arrays: Mapping[str, Array]) -> Tensor:
    if TARGETS in arrays:
        return target_tensor(path, arrays[TARGETS])
    try:
        return label_tensor(path, arrays["labels"])
    except DataError as error:
        if arrays["labels"].ndim == 1 and arrays["labels"].dtype.kind != "f":
            raise
        raise DataError(f"{error} Name the array {TARGETS!r} if they are the targets of another loss.") from None


def _arrays(path: Path, split: str) -> dict[str, Array]:
    """Only the members that are needed, under our names for them."""
    try:
        with open_file(follow_links(path)) as file, zipfile.ZipFile(file) as archive:
            held = [name.removesuffix(".npy") for name in archive.namelist() if name.endswith(".npy")]
            images, labels = _key(path, held, _IMAGES, split), _key(path, held, _LABELS, split)
            keys = {"images": images, TARGETS if TARGETS in labels else "labels": labels}
            writers = _find(held, _WRITERS, split)
            keys |= {"writers": writers} if writers else {}
            keys |= {"class_names": "class_names"} if "class_names" in held else {}
            return {ours: _npy(path, key, _member(path, archive, key)) for ours, key in keys.items()}
    except _BROKEN_ZIP as error:
        raise DataError(f"{path}: not a readable npz file ({error}): it is missing, truncated or corrupt.") from None


def _find(held: Sequence[str], names: Sequence[str], split: str) -> str | None:
    candidates = [key for name in names for key in (f"{split}_{name}", f"{name}_{split}")]
    candidates += names if split == "train" else ()
    return next((key for key in candidates if key in held), None)


def _key(path: Path, held: Sequence[str], names: Sequence[str], split: str) -> str:
    key = _find(held, names, split)
    if key is None:
        raise DataError(
            f"{path}: expected an array named {names[0]!r} or '{split}_{names[0]}' for the {split} split, "
            f"found {', '.join(held[:10]) or 'nothing'}: rename it."
        )
    return key


def _class_names(path: Path, names: Array | None) -> tuple[str, ...] | None:
    if names is None:
        return None
    if names.ndim != 1 or names.dtype.kind != "U":
        raise DataError(f"{path}: class_names must be text of shape (classes,), got {names.dtype}.")
    return tuple(map(str, names))


def _member(path: Path, archive: zipfile.ZipFile, key: str) -> bytes:
    info = archive.getinfo(key + ".npy")
    # The zip directory's size is a promise that zipfile enforces: it never unpacks more than that.
    if info.file_size > MAX_BYTES:
        raise DataError(f"{path}: {key} unpacks to {info.file_size} bytes, at most {MAX_BYTES} are read.")
    # numpy writes no other kind, and the other decoders have failures of their own.
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise DataError(f"{path}: {key} is packed with an unusual method: save it with numpy.savez.")
    return archive.read(info)


def _npy(path: Path, key: str, raw: bytes) -> Array:
    """One array; only plain numbers and text pass, so that nothing is ever unpickled."""
    dtype, fortran, shape, start = _header(path, key, raw)
    check_values(path, shape)
    if len(raw) - start != math.prod(shape) * dtype.itemsize:
        raise DataError(f"{path}: {key} is {len(raw) - start} bytes long, its header announces {shape} {dtype}.")
    flat = np.frombuffer(raw, dtype, offset=start)
    return flat.reshape(shape, order="F" if fortran else "C").astype(dtype.newbyteorder("="), copy=False)


def _header(path: Path, key: str, raw: bytes) -> tuple[np.dtype[np.generic], bool, tuple[int, ...], int]:
    if not raw.startswith(_MAGIC) or len(raw) < 12:
        raise DataError(f"{path}: {key} is not an array (wrong magic bytes).")
    wide = 4 if raw[6] > 1 else 2
    start = 8 + wide + int.from_bytes(raw[8 : 8 + wide], "little")
    text = raw[8 + wide : min(start, 10_000)].decode("latin-1")
    try:
        header = ast.literal_eval(text.strip())
        descr, fortran, shape = header["descr"], header["fortran_order"], header["shape"]
    except (SyntaxError, ValueError, TypeError, KeyError, MemoryError, RecursionError):
        raise DataError(f"{path}: {key} has a corrupt header.") from None
    if isinstance(descr, str) and descr.endswith("O"):
        raise DataError(
            f"{path}: {key} holds Python objects as pickles, which could run code and are refused: save "
            "plain arrays of numbers."
        )
    if not isinstance(descr, str) or not _NUMBERS_OR_TEXT.fullmatch(descr):
        raise DataError(f"{path}: {key} must hold plain numbers or text, got {descr!r}.")
    if not isinstance(shape, tuple) or not all(type(side) is int and side >= 0 for side in shape):
        raise DataError(f"{path}: {key} has a corrupt shape, {shape!r}.")
    return np.dtype(descr), bool(fortran), shape, start
