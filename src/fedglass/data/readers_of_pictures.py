"""Readers of pictures of others: a folder with a subfolder per class, and single files."""

from __future__ import annotations

import struct
import warnings
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from fedglass.core.errors import DataError
from fedglass.core.files import follow_links, open_file
from fedglass.core.registry import register
from fedglass.data.dataset import Dataset, measured
from fedglass.data.files import check_values, image_tensor

_SUFFIXES = (".png", ".jpg", ".jpeg")
_MOST_FILES = 100_000
_MOST_PIXELS = 1 << 26
"""In one picture, before it is unpacked: a few kilobytes of PNG can announce gigapixels."""

_GREY = ("1", "L")
_COLOUR = ("LA", "P", "PA", "RGB", "RGBA", "CMYK", "YCbCr")


@register("datasets", "folder", summary="PNG and JPEG pictures in one subfolder per class")
def read_folder(path: Path, split: str = "train", size: int | None = None) -> Dataset:
    """Read the pictures of each class's subfolder; with `size` cut to their central square and reduced to it.

    All pictures are grey if every one of them is, else RGB. Without `size` all must have the same size.
    """
    root = path / split if (path / split).is_dir() else path
    classes = _classes(root)
    files = [(file, label) for label, (_, held) in enumerate(classes) for file in held]
    grey, height, width = _survey([file for file, _ in files], size)
    check_values(root, (len(files), 1 if grey else 3, height, width))
    pixels = np.stack([_pixels(file, grey, size) for file, _ in files])
    images = image_tensor(root, pixels)
    return Dataset(
        name=path.name,
        images=images,
        labels=torch.tensor([label for _, label in files]),
        classes=len(classes),
        whitening=measured(images),
        class_names=tuple(name for name, _ in classes),
    )


def read_picture(file: Path, size: int | None) -> Tensor:
    """Read one picture in colour, pixels in [0, 1]; with `size` its central square reduced to it.  # (3, h, w)"""
    with _picture(file) as picture:
        check_values(file, (3, picture.height, picture.width))
    return image_tensor(file, _pixels(file, False, size)[None])[0]


def _classes(root: Path) -> list[tuple[str, list[Path]]]:
    """Return every subfolder with its pictures, in the order of their names."""
    try:
        folders = sorted(p for p in root.iterdir() if p.is_dir())
        held = [(p.name, sorted(f for f in p.iterdir() if f.suffix.lower() in _SUFFIXES)) for p in folders]
    except OSError as error:
        raise DataError(f"{root}: cannot be read ({error.strerror or error}).") from None
    classes = [(name, files) for name, files in held if files]
    count = sum(len(files) for _, files in classes)
    if not 1 <= count <= _MOST_FILES:
        raise DataError(
            f"{root}: expected 1 to {_MOST_FILES} PNG or JPEG pictures in subfolders, one per class, got {count}."
        )
    return classes


def _survey(files: list[Path], size: int | None) -> tuple[bool, int, int]:
    """Return whether all are grey, and their height and width, from the headers alone."""
    if size is not None and size < 1:
        raise DataError(f"size must be at least 1 pixel, got {size}.")
    grey, sizes = True, dict[tuple[int, int], Path]()
    for file in files:
        with _picture(file) as picture:
            grey = grey and picture.mode in _GREY
            sizes.setdefault(picture.size, file)
    if size is not None:
        return grey, size, size
    if len(sizes) > 1:
        (one, first), (other, second) = list(sizes.items())[:2]
        raise DataError(
            f"{second}: is {other[0]}x{other[1]} pixels and {first.name} is {one[0]}x{one[1]}: set size "
            "to bring all pictures to one."
        )
    width, height = next(iter(sizes))
    return grey, height, width


def _pixels(file: Path, grey: bool, size: int | None) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    with _picture(file) as picture:
        plain = picture.convert("L" if grey else "RGB")
        if size is not None:
            side = min(plain.size)
            left, top = (plain.width - side) // 2, (plain.height - side) // 2
            square = plain.crop((left, top, left + side, top + side))
            plain = square.resize((size, size), Image.Resampling.BILINEAR)
        return np.array(plain, dtype=np.uint8)


@contextmanager
def _picture(file: Path) -> Iterator[Image.Image]:
    """Open a picture after a check of its announced size; every way of being broken is a DataError."""
    try:
        with warnings.catch_warnings():
            # Our own limit is lower than the one that Pillow warns at.
            warnings.simplefilter("ignore")
            with open_file(follow_links(file)) as raw, Image.open(raw, formats=("PNG", "JPEG")) as picture:
                if picture.width * picture.height > _MOST_PIXELS:
                    raise DataError(
                        f"{file}: announces {picture.width}x{picture.height} pixels, at most {_MOST_PIXELS} are "
                        "unpacked: reduce it first."
                    )
                if picture.mode not in (*_GREY, *_COLOUR):
                    raise DataError(f"{file}: pixels must be 8 bits deep, got mode {picture.mode}: convert it first.")
                yield picture
    except Image.DecompressionBombError:
        raise DataError(f"{file}: announces more than {_MOST_PIXELS} pixels: reduce it first.") from None
    except (OSError, SyntaxError, ValueError, EOFError, struct.error, zlib.error) as error:
        raise DataError(f"{file}: not a readable PNG or JPEG picture ({error}): truncated or corrupt?") from None
