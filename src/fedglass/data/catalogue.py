"""Every dataset by its name, or by the path of the user's own file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from fedglass.core.errors import DataError, UsageError, unknown_name
from fedglass.core.types import Whitening
from fedglass.data.cifar import read_cifar10, read_cifar100
from fedglass.data.dataset import Dataset
from fedglass.data.files import opened
from fedglass.data.folder import read_folder
from fedglass.data.glyphs import glyphs
from fedglass.data.idx import read_idx
from fedglass.data.leaf import read_leaf
from fedglass.data.npz import read_npz
from fedglass.data.photos import photos


@dataclass(frozen=True)
class _Format:
    """A kind of file that users bring."""

    read: Callable[[Path, str], Dataset]
    says: str


_EMBEDDED: dict[str, tuple[Callable[[], Dataset], str]] = {
    "glyphs": (
        glyphs,
        "62 classes of grey 28x28 characters in the styles of 50 writers, a stand-in for FEMNIST",
    ),
    "photos": (photos, "24 colour crops of 64x64 in 10 classes from public-domain and CC0 photographs"),
}

_FORMATS = {
    "idx": _Format(read_idx, "idx:PATH, images of MNIST's format (plain or gz) with their labels beside them"),
    "cifar10": _Format(read_cifar10, "cifar10:PATH, the folder, the tar.gz or one batch, binary or python version"),
    "cifar100": _Format(read_cifar100, "cifar100:PATH, the same for CIFAR-100 with its fine labels"),
    "leaf": _Format(read_leaf, "leaf:PATH, LEAF's json file or a folder of them, a writer per user"),
    "npz": _Format(read_npz, "npz:PATH, arrays images/labels, x/y or train_images/train_labels; no pickles"),
    "folder": _Format(read_folder, "folder:PATH, PNG and JPEG pictures in one subfolder per class"),
}


def names() -> dict[str, str]:
    """What `load` takes, with one line about each.

    >>> list(names())
    ['glyphs', 'photos', 'idx', 'cifar10', 'cifar100', 'leaf', 'npz', 'folder']
    """
    embedded = {name: says for name, (_, says) in _EMBEDDED.items()}
    return embedded | {name: kind.says for name, kind in _FORMATS.items()}


def load(source: str, *, split: str = "train", size: int | None = None, whitening: Whitening | None = None) -> Dataset:
    """A dataset by name (`glyphs`), by format and path (`idx:/data/mnist`) or by path alone.

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


def _read(source: str, split: str, size: int | None) -> Dataset:
    if source in _EMBEDDED:
        if split != "train":
            raise UsageError(f"{source} has no {split} split: leave split out.")
        return _EMBEDDED[source][0]()
    kind, path = _locate(source)
    # Pictures of unequal sizes can only be brought together while they are read.
    return read_folder(path, split, size) if kind == "folder" else _FORMATS[kind].read(path, split)


def _locate(source: str) -> tuple[str, Path]:
    kind, colon, rest = source.partition(":")
    if colon and kind in _FORMATS:
        path = Path(rest).expanduser()
        if not rest or not path.exists():
            raise DataError(f"{kind}: no such file or folder: {rest!r}.")
        return kind, path
    path = Path(source).expanduser()
    if path.exists():
        return _sniff(path), path
    if colon and len(kind) > 1:
        raise unknown_name("dataset format", kind, _FORMATS)
    if any(mark in source for mark in "/\\."):
        raise DataError(f"No such file or folder: {source!r}.")
    raise unknown_name("dataset", source, names())


def _sniff(path: Path) -> str:
    """The format of a file or folder whose user did not say it."""
    kind = _sniff_folder(path) if path.is_dir() else _sniff_file(path)
    if kind is None:
        raise DataError(
            f"{path}: its format is not evident; say it in front of the path, as one of "
            f"{', '.join(f'{name}:' for name in _FORMATS)}."
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
