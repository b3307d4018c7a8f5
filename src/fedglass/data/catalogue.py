"""Every dataset by its name, or by the path of the user's own file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from fedglass.core.errors import DataError, UsageError, unknown_name
from fedglass.core.registry import Entry, built_in, call, entries, find, located_at, reads_path, split_path, takes
from fedglass.core.registry import names as known
from fedglass.core.types import Whitening
from fedglass.core.user_code import is_dotted, is_importable
from fedglass.data.dataset import Dataset
from fedglass.data.files import opened

KIND = "datasets"


def names() -> dict[str, str]:
    """Return the names that `load` takes, with one line about each: sets first, then formats, followed by `:PATH`.

    >>> list(names())
    ['glyphs', 'photos', 'cifar10', 'cifar100', 'npz', 'idx', 'leaf', 'folder']
    """
    usable = sorted((entry for entry in entries(KIND) if not entry.problem), key=reads_path)
    return {entry.name: entry.summary for entry in usable}


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
