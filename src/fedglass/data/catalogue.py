"""Every dataset by its name, or by the path of the user's own file.

`glyphs` are characters drawn on the spot: a stand-in for FEMNIST that needs no file.
"""

from __future__ import annotations

import json
import math
from dataclasses import replace
from importlib import resources
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont, features
from torch import Tensor

from fedglass.core.errors import DataError, UsageError, is_dotted, is_importable, unknown_name
from fedglass.core.registry import (
    Entry,
    built_in,
    call,
    find,
    located_at,
    reads_path,
    register,
    split_path,
    takes,
)
from fedglass.core.registry import names as known
from fedglass.core.rng import stream
from fedglass.core.types import Whitening
from fedglass.data.dataset import FEMNIST, Dataset, measured
from fedglass.data.files import opened

KIND = "datasets"


def load(source: str, *, split: str = "train", size: int | None = None, whitening: Whitening | None = None) -> Dataset:
    """A dataset by name (`glyphs`), by format and path (`idx:/data/mnist`), by path alone, or `package.module:reader`.

    `split` chooses between train and test where the source has both, `size` brings the images to size x size.
    The whitening is the published one for FEMNIST and CIFAR, measured from the images for all others, or the
    one that is given.

    >>> load("photos", size=32).shape
    (3, 32, 32)
    """
    if split not in ("train", "test"):
        raise UsageError(f"split must be 'train' or 'test', got {split!r}.")
    data = _read(source, split, size)
    if size is not None and data.shape[1:] != (size, size):
        data = data.resized(size)
    return data if whitening is None else replace(data, whitening=whitening)


def is_embedded(source: str) -> bool:
    """Return whether the source is a set that comes with fedglass and so never changes."""
    return source in built_in(KIND) and not reads_path(built_in(KIND)[source])


def located(source: str, folder: Path) -> str:
    """A dataset's name as it is; a path, alone or after its format, relative to the folder.

    >>> located("glyphs", Path("plans")), located("npz:faces.npz", Path("plans"))
    ('glyphs', 'npz:plans/faces.npz')
    """
    if split_path(KIND, source)[1] is not None:
        return located_at(KIND, source, folder)
    path = folder / Path(source).expanduser()
    return str(path) if source not in known(KIND) and path.exists() else source


def _read(source: str, split: str, size: int | None) -> Dataset:
    entry, path = _locate(source)
    if not takes(entry.value, "split") and split != "train":
        raise UsageError(f"{source} has no {split} split: leave split out.")
    # Pictures of unequal sizes can only be brought together while they are read.
    offered = {"path": path, "split": split, "size": size}
    data = call(entry, entry.value, {name: value for name, value in offered.items() if takes(entry.value, name)})
    if not isinstance(data, Dataset):
        raise DataError(
            f"The dataset {entry.name!r} returned {type(data).__name__}, expected a fedglass.data.dataset.Dataset: "
            "return one."
        )
    return data


def _locate(source: str) -> tuple[Entry, Path | None]:
    """Return the reader of the source, and the path that it reads."""
    name, file = split_path(KIND, source)
    if file is not None and ":" in source:
        path = Path(file).expanduser()
        if not file or not path.exists():
            raise DataError(f"{name}: no such file or folder: {file!r}.")
        return _reader(name), path
    if file is None and name in known(KIND):
        return _reader(name), None
    path = Path(source).expanduser()
    if path.exists():
        return find(KIND, _sniff(path)), path
    return _own(source), None


def _own(source: str) -> Entry:
    """The user's own reader, or why there is none of that name."""
    kind, colon, _ = source.partition(":")
    if colon and len(kind) > 1:
        unknown = unknown_name("dataset format", kind, _formats())
        if not is_dotted(kind) or not ("." in kind or is_importable(kind)):
            raise unknown
        try:
            return _reader(source)
        except UsageError as error:
            # Many a word that was meant as a format is a module too, such as csv.
            raise error if "." in kind else DataError(f"{unknown} Nor is it a reader of yours: {error}") from error
    if source in known(KIND):
        raise DataError(f"The dataset {source!r} is a format: write the path of your file behind it, {source}:PATH.")
    if any(mark in source for mark in "/\\."):
        raise DataError(f"No such file or folder: {source!r}.")
    raise unknown_name("dataset", source, known(KIND))


def _reader(name: str) -> Entry:
    entry = find(KIND, name)
    if not callable(entry.value):
        raise DataError(
            f"The dataset {name!r} is {type(entry.value).__name__}, expected a function that returns a "
            "fedglass.data.dataset.Dataset."
        )
    return entry


def _formats() -> list[str]:
    return [entry.name for entry in built_in(KIND).values() if reads_path(entry)]


def _sniff(path: Path) -> str:
    """The format of a file or folder whose user did not say it."""
    kind = _sniff_folder(path) if path.is_dir() else _sniff_file(path)
    if kind is None:
        raise DataError(
            f"{path}: its format is not evident; say it in front of the path, as one of "
            f"{', '.join(f'{name}:' for name in _formats())}."
        )
    return kind


def _sniff_folder(path: Path) -> str | None:
    signs = (
        ("*images*idx3*", "idx"),
        ("data_batch_*", "cifar10"),
        ("*/data_batch_*", "cifar10"),
        ("fine_label_names.txt", "cifar100"),
        ("train.bin", "cifar100"),
        ("meta", "cifar100"),
        ("*/*.[pPjJ]*[gG]", "folder"),
        ("*/*/*.[pPjJ]*[gG]", "folder"),
        ("*.json", "leaf"),
        ("train/*.json", "leaf"),
    )
    return next((kind for pattern, kind in signs if any(path.glob(pattern))), None)


def _sniff_file(path: Path) -> str | None:
    if path.name.endswith((".tar.gz", ".tgz", ".tar")):
        return "cifar100" if "100" in path.name else "cifar10"
    if path.suffix == ".json":
        return "leaf"
    with opened(path) as file:
        start = file.read(4)
    if start.startswith(b"PK"):
        return "npz"
    if start == b"\x00\x00\x08\x03":
        return "idx"
    if path.name.startswith(("data_batch_", "test_batch")):
        return "cifar10"
    return {".npz": "npz", ".bin": "cifar100" if path.stem in ("train", "test") else None}.get(path.suffix)


CHARACTERS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
SIDE = 28
_FINE = 6  # characters are drawn on a grid this much finer and then averaged, which smooths their edges


Style = tuple[float, float, float, float, float, float]
"""The look of characters: slant, turn, width, height, and shifts to the right and down in pixels of the small image."""


@register(
    "datasets",
    "glyphs",
    summary="62 classes of grey 28x28 characters in the styles of 50 writers, a stand-in for FEMNIST",
)
def glyphs(writers: int = 50, per_writer: int = 60, seed: int = 0) -> Dataset:
    """62 classes of grey 28x28 characters on white, in a slant, weight, scale and position per writer.

    Writer w's i-th image depends on the seed, w and i alone, so that asking for more moves nothing. The font is Aileron
    Regular, which Pillow ships.

    >>> glyphs(writers=2, per_writer=3).images.shape
    torch.Size([6, 1, 28, 28])
    """
    if writers < 1 or per_writer < 1:
        raise DataError(f"glyphs: writers and per_writer must be at least 1, got {writers} and {per_writer}.")
    font = _font()
    drawn = [_page(font, stream(seed, "glyphs", w), per_writer) for w in range(writers)]
    return Dataset(
        name="glyphs",
        images=torch.cat([images for images, _ in drawn]),
        labels=torch.cat([labels for _, labels in drawn]),
        classes=len(CHARACTERS),
        whitening=FEMNIST,
        class_names=tuple(CHARACTERS),
        writers=torch.arange(writers).repeat_interleave(per_writer),
    )


def _font() -> ImageFont.FreeTypeFont:
    # Without FreeType, Pillow would fall back to a bitmap font that cannot be scaled.
    if not features.check("freetype2"):
        raise DataError("glyphs: Pillow was built without FreeType; install Pillow from its wheels.")
    font = ImageFont.load_default(size=15 * _FINE)
    if not isinstance(font, ImageFont.FreeTypeFont):
        raise DataError("glyphs: Pillow offers no scalable built-in font; install Pillow >= 10.1.")
    return font


def _page(font: ImageFont.FreeTypeFont, generator: torch.Generator, count: int) -> tuple[Tensor, Tensor]:
    """One writer's images and labels."""
    u = (2 * torch.rand(6, generator=generator) - 1).tolist()
    slant, turn, right, down = 0.12 + 0.3 * u[0], 0.1 * u[1], 1.5 * u[4], 1.5 * u[5]
    width, height = math.exp(0.2 * u[2]), math.exp(0.2 * u[3])
    weight = int(torch.randint(3, (), generator=generator))
    labels, images = [], []
    for _ in range(count):
        label = int(torch.randint(len(CHARACTERS), (), generator=generator))
        labels.append(label)
        # Nobody writes a character twice in the same way.
        z = torch.randn(6, generator=generator).clamp(-2, 2).tolist()
        style = (
            slant + 0.05 * z[0],
            turn + 0.04 * z[1],
            width * math.exp(0.05 * z[2]),
            height * math.exp(0.05 * z[3]),
            right + 0.5 * z[4],
            down + 0.5 * z[5],
        )
        images.append(_draw(font, CHARACTERS[label], style, weight))
    pixels = torch.from_numpy(np.stack(images)).float() / 255
    return pixels.unsqueeze(1), torch.tensor(labels)


def _draw(
    font: ImageFont.FreeTypeFont, character: str, style: Style, weight: int
) -> np.ndarray[tuple[int, int], np.dtype[np.uint8]]:
    """Draw a character; `weight` is the thickness added on every side, in pixels of the fine grid."""
    fine = SIDE * _FINE
    canvas = Image.new("L", (fine, fine), 0)
    left, top, right, bottom = font.getbbox(character, stroke_width=weight)
    corner = ((fine - left - right) / 2, (fine - top - bottom) / 2)
    ImageDraw.Draw(canvas).text(corner, character, fill=255, font=font, stroke_width=weight)
    ink = canvas.transform(canvas.size, Image.Transform.AFFINE, _inverse(style), Image.Resampling.NEAREST)
    return 255 - np.asarray(ink.reduce(_FINE), dtype=np.uint8)


def _inverse(style: Style) -> tuple[float, float, float, float, float, float]:
    """Pillow's coefficients: where each pixel of the result is fetched from."""
    slant, turn, width, height, right, down = style
    cos, sin = math.cos(turn), math.sin(turn)
    # Forward: scale, then slant (the top moves right), then turn, all about the centre, then shift.
    forward = np.array([[cos, -sin], [sin, cos]]) @ np.array([[1, -slant], [0, 1]])
    forward = forward @ np.diag([width, height])
    back = np.linalg.inv(forward)
    centre = np.full(2, SIDE * _FINE / 2)
    offset = centre - back @ (centre + _FINE * np.array([right, down]))
    (a, b), (d, e) = back.tolist()
    return a, b, float(offset[0]), d, e, float(offset[1])


# Small colour pictures that come with the package; CREDITS.md next to them names their sources.


@register("datasets", "photos", summary="24 colour crops of 64x64 in 10 classes from public-domain and CC0 photographs")
def photos() -> Dataset:
    """24 colour crops of 64x64 pixels in 10 classes of what they show; the first ten differ in class.

    >>> photos().images.shape
    torch.Size([24, 3, 64, 64])
    """
    folder = resources.files("fedglass.data") / "embedded"
    index = json.loads((folder / "photos.json").read_text(encoding="utf-8"))
    side, tiles = index["side"], index["tiles"]
    with (folder / "photos.png").open("rb") as file, Image.open(file) as sheet:
        pixels = torch.from_numpy(np.array(sheet.convert("RGB")))  # (rows * side, columns * side, 3)
    grid = pixels.unfold(0, side, side).unfold(1, side, side)  # (rows, columns, 3, side, side)
    images = grid.flatten(0, 1)[: len(tiles)].float() / 255
    return Dataset(
        name="photos",
        images=images,
        labels=torch.tensor([tile["label"] for tile in tiles]),
        classes=len(index["classes"]),
        whitening=measured(images),
        class_names=tuple(index["classes"]),
    )
