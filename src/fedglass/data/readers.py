"""Readers of data sets of others: npz archives, idx files of MNIST, and json files of LEAF."""

from __future__ import annotations

import ast
import math
import re
import struct
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedglass.core.errors import DataError
from fedglass.core.files import follow_links, open_file, parse_json
from fedglass.core.registry import register
from fedglass.data.catalogue import CHARACTERS
from fedglass.data.dataset import FEMNIST, Dataset, check_images, measured
from fedglass.data.files import (
    MAX_BYTES,
    MAX_CLASSES,
    Array,
    check_values,
    class_count,
    contents,
    exactly,
    image_tensor,
    label_tensor,
    opened,
    target_tensor,
)

# npz archives of arrays, read without numpy's own loader so that no pickle is ever touched.


_IMAGES = ("images", "x", "data")
_LABELS = ("labels", "y", "targets", "subject_id")
TARGETS = "targets"
"""The array that may have the targets of any loss."""
_WRITERS = ("client_id", "writers", "writer", "user_id")
_MAGIC = b"\x93NUMPY"
_LONGEST_HEADER = 10_000
_PIECE = 1 << 20
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
    texts = arrays.get("class_names")
    if texts is not None and (texts.ndim != 1 or texts.dtype.kind != "U"):
        raise DataError(f"{path}: class_names must be text of shape (classes,), got {texts.dtype}.")
    if texts is not None and len(texts) > MAX_CLASSES:
        raise DataError(f"{path}: class_names has {len(texts)} names, at most {MAX_CLASSES} are read: leave it out.")
    class_names = None if texts is None else tuple(map(str, texts))
    return Dataset(
        name=path.stem,
        images=images,
        labels=labels,
        classes=class_count(path, labels) if class_names is None else len(class_names),
        whitening=measured(images),
        class_names=class_names,
        writers=label_tensor(path, arrays["writers"], "writers") if "writers" in arrays else None,
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
            writers = _member_for(held, _WRITERS, split)
            keys |= {"writers": writers} if writers else {}
            keys |= {"class_names": "class_names"} if "class_names" in held else {}
            members = {ours: _announced(path, archive, key) for ours, key in keys.items()}
            _check_together(path, members)
            return {ours: _values(archive, member) for ours, member in members.items()}
    except _BROKEN_ZIP as error:
        raise DataError(f"{path}: not a readable npz file ({error}): it is missing, truncated or corrupt.") from None


def _member_for(held: Sequence[str], names: Sequence[str], split: str) -> str | None:
    candidates = [key for name in names for key in (f"{split}_{name}", f"{name}_{split}")]
    candidates += names if split == "train" else ()
    return next((key for key in candidates if key in held), None)


def _key(path: Path, held: Sequence[str], names: Sequence[str], split: str) -> str:
    key = _member_for(held, names, split)
    if key is None:
        shown = ["".join(c if c.isprintable() else "?" for c in name[:40]) for name in held[:10]]
        raise DataError(
            f"{path}: expected an array named {names[0]!r} or '{split}_{names[0]}' for the {split} split, "
            f"found {', '.join(shown) or 'nothing'}: rename it."
        )
    return key


@dataclass(frozen=True)
class _Member:
    """An array of an archive, as its header announces it."""

    key: str
    info: zipfile.ZipInfo
    dtype: np.dtype[np.generic]
    fortran: bool
    shape: tuple[int, ...]
    start: int
    """The length of its header."""

    @property
    def values(self) -> int:
        return math.prod(self.shape)


def _announced(path: Path, archive: zipfile.ZipFile, key: str) -> _Member:
    """Read the header of an array; only plain numbers and text pass, so that nothing is ever unpickled."""
    info = archive.getinfo(key + ".npy")
    # numpy writes no other kind, and the other decoders have failures of their own.
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise DataError(f"{path}: {key} is packed with an unusual method: save it with numpy.savez.")
    with archive.open(info) as file:
        dtype, fortran, shape, start = _header(path, key, file.read(_LONGEST_HEADER))
    return _Member(key, info, dtype, fortran, shape, start)


def _check_together(path: Path, members: Mapping[str, _Member]) -> None:
    """Refuse arrays that are too large together, or do not fit each other, by what they announce."""
    unpacked = memory = 0
    for ours, member in members.items():
        # The zip directory's size is a promise that zipfile enforces: it never unpacks more than that.
        unpacked += member.info.file_size
        if unpacked > MAX_BYTES:
            raise DataError(
                f"{path}: {member.key} unpacks to {member.info.file_size} bytes, at most {MAX_BYTES} are read of all "
                "arrays together: keep a part of them."
            )
        check_values(path, member.shape)
        memory += member.values if ours == "images" else 2 * member.values  # labels become int64, images float32
        length = member.info.file_size - member.start
        if length != member.values * member.dtype.itemsize:
            raise DataError(
                f"{path}: {member.key} is {length} bytes long, its header announces {member.shape} {member.dtype}."
            )
    check_values(path, (memory,))
    images = members["images"]
    for ours, member in members.items():
        if images.shape and member.shape and ours != "class_names" and member.shape[0] != images.shape[0]:
            raise DataError(
                f"{path}: expected an entry for each of {images.shape[0]} images, got {member.shape[0]} {member.key}: "
                "save arrays of one length."
            )


def _values(archive: zipfile.ZipFile, member: _Member) -> Array:
    """Read an array in pieces into its place."""
    raw = np.empty(member.values * member.dtype.itemsize, np.uint8)
    with archive.open(member.info) as file:
        file.read(member.start)
        for place in range(0, len(raw), _PIECE):
            piece = raw[place : place + _PIECE]
            data = file.read(len(piece))
            if len(data) != len(piece):
                raise EOFError(f"{member.key} ends too early")
            piece[:] = np.frombuffer(data, np.uint8)
        file.read(1)  # the end, where zipfile compares the checksum
    flat = np.frombuffer(raw, member.dtype)
    native = flat.reshape(member.shape, order="F" if member.fortran else "C")
    return native.astype(member.dtype.newbyteorder("="), copy=False)


def _header(path: Path, key: str, raw: bytes) -> tuple[np.dtype[np.generic], bool, tuple[int, ...], int]:
    if not raw.startswith(_MAGIC) or len(raw) < 12:
        raise DataError(f"{path}: {key} is not an array (wrong magic bytes).")
    wide = 4 if raw[6] > 1 else 2
    start = 8 + wide + int.from_bytes(raw[8 : 8 + wide], "little")
    text = raw[8 + wide : min(start, _LONGEST_HEADER)].decode("latin-1")
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


# Files of MNIST's format.


_UBYTE = 8


@register("datasets", "idx", summary="images of MNIST's format (plain or gz) with their labels next to them")
def read_idx(path: Path, split: str = "train") -> Dataset:
    """Read the images and the labels next to them; `path` is the images' file, or a folder that holds such pairs."""
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
    )


def _array(path: Path, sides: int) -> Array:
    """Read an array; the file must be exactly as long as its header announces."""
    with opened(path) as file:
        zero, kind, dimensions = struct.unpack(">HBB", exactly(file, 4, path))
        if zero != 0 or kind != _UBYTE or dimensions != sides:
            raise DataError(
                f"{path}: expected an idx file of unsigned bytes with {sides} sides (magic 0, 8, {sides}), "
                f"got magic {zero}, {kind}, {dimensions}: give the images' file, with the labels' file next to it."
            )
        shape = struct.unpack(f">{sides}I", exactly(file, 4 * sides, path))
        check_values(path, shape)
        raw = exactly(file, math.prod(shape), path)
        if file.read(1):
            raise DataError(f"{path}: longer than its header announces ({shape}): it is damaged.")
    return np.frombuffer(raw, np.uint8).reshape(shape)


def _find(folder: Path, split: str) -> Path:
    prefix = "train" if split == "train" else "t10k"
    candidates = sorted(folder.glob("*images*idx3*"))
    named = [p for p in candidates if p.name.startswith((prefix, split))]
    if not named and len(candidates) == 1 and split == "train":
        return candidates[0]
    if not named:
        raise DataError(f"{folder}: expected {prefix}-images-idx3-ubyte or the same with .gz, found none.")
    return named[0]


def _partner(images: Path) -> Path:
    name = images.name.replace("images", "labels").replace("idx3", "idx1")
    plain = name.removesuffix(".gz")
    partners = [images.with_name(n) for n in (name, plain, plain + ".gz")]
    for path in partners:
        if path != images and path.is_file():
            return path
    raise DataError(
        f"{images}: expected the labels next to it as {plain} or {plain}.gz, found neither: put them there."
    )


_MOST = 256 << 20  # LEAF writes FEMNIST in files of about half of this; parsed, json takes many times its length
_MOST_USERS = 100_000


@register(
    "datasets",
    "leaf",
    summary="LEAF's json file or a folder of them, a writer per user",
    paper="Caldas et al.: LEAF: A Benchmark for Federated Settings, 2018, https://arxiv.org/abs/1812.01097",
)
def read_leaf(path: Path, split: str = "train") -> Dataset:
    """Read grey square images in [0, 1] with one writer per user, from one json file or a folder of them.

    28x28 images with labels below 62 are taken for FEMNIST, with its class names and its whitening.
    """
    pages = _all_pages(path, _files(path, split))
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
    )


def _files(path: Path, split: str) -> list[Path]:
    if not path.is_dir():
        return [path]
    folder = path / split if (path / split).is_dir() else path
    files = sorted(folder.glob("*.json"))
    if not files:
        raise DataError(f"{folder}: expected LEAF's json files in it, found none.")
    return files


def _all_pages(path: Path, files: Sequence[Path]) -> list[tuple[str, Tensor, Tensor]]:
    """Read the users of all files, which have limits together as each file has."""
    pages, length, values = list[tuple[str, Tensor, Tensor]](), 0, 0
    for file in files:
        text = contents(file, _MOST)
        length += len(text)
        if length > MAX_BYTES:
            raise DataError(f"{path}: its files hold more than {MAX_BYTES} bytes together: keep some of them.")
        for page in _pages(file, text):
            pages.append(page)
            values += page[1].numel()
            check_values(path, (values,))
            if len(pages) > _MOST_USERS:
                raise DataError(f"{path}: holds more than {_MOST_USERS} users: keep some of them.")
    return pages


def _pages(path: Path, text: bytes) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Return each user of one file with pixels (n, d) and labels (n,)."""
    try:
        table = parse_json(text)
    except ValueError as error:
        raise DataError(f"{path}: not readable as json ({error}): it is truncated, corrupt or too large.") from None
    data = table.get("user_data") if isinstance(table, dict) else None
    if not isinstance(data, dict) or not data:
        raise DataError(f"{path}: expected LEAF's 'user_data' with an entry per user, found none.")
    return (_page(path, user, entry) for user, entry in data.items())


def _page(path: Path, user: str, entry: object) -> tuple[str, Tensor, Tensor]:
    x, y = (entry.get("x"), entry.get("y")) if isinstance(entry, dict) else (None, None)
    try:
        # Texts would become an array as wide as the longest.
        are_numbers = isinstance(y, list) and {type(v) for label in y for v in _listed(label)} <= {int, float}
        pixels, labels = np.array(x, dtype=np.float64), np.array(y if are_numbers else [])
    except (ValueError, TypeError, OverflowError):
        pixels, labels = np.zeros(0), np.zeros(0)
    if pixels.ndim != 2 or pixels.size == 0 or len(pixels) != len(np.atleast_1d(labels)):
        raise DataError(
            f"{path}: user {user[:40]!r} must have 'x' as equally long rows of pixels and 'y' with a label for each "
            "row."
        )
    return user, torch.from_numpy(pixels).float(), label_tensor(path, labels, f"labels of user {user[:40]!r}")


def _listed(label: object) -> Sequence[object]:
    return label if isinstance(label, list) else (label,)


def _images(path: Path, pages: list[Tensor]) -> Tensor:
    lengths = {x.shape[1] for x in pages}
    length = min(lengths)
    side = math.isqrt(length)
    if len(lengths) > 1 or side * side != length:
        raise DataError(f"{path}: expected grey square images, 784 pixels in FEMNIST, got rows of {lengths}.")
    images = torch.cat(pages).view(-1, 1, side, side)
    check_images(str(path), images)
    return images
