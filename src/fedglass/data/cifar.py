"""CIFAR-10 and CIFAR-100, binary and "python" version, as a folder, the official tar.gz or one batch."""

from __future__ import annotations

import tarfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedglass.core.errors import DataError
from fedglass.core.registry import register
from fedglass.core.types import Whitening
from fedglass.data.dataset import CIFAR10, CIFAR100, Dataset
from fedglass.data.files import Array, Bounded, contents, image_tensor, label_tensor, opened
from fedglass.data.pickled import byte_array, plain_values

_PIXELS = 3 * 32 * 32
_MOST = 256 << 20  # the largest official file, CIFAR-100's python training batch, has 155 MB
_CIFAR10_NAMES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


PAPER = (
    "Krizhevsky: Learning Multiple Layers of Features from Tiny Images, 2009, "
    "https://www.cs.toronto.edu/~kriz/learning-features-2009-TR.pdf"
)


@dataclass(frozen=True)
class _Flavour:
    """The differences between the two datasets."""

    name: str
    classes: int
    whitening: Whitening
    train: tuple[str, ...]
    test: tuple[str, ...]
    label_bytes: int
    """In a binary record; the last of them is the (fine) label."""
    label_key: str
    class_names: tuple[str, ...] | None


_TEN = _Flavour(
    name="cifar10",
    classes=10,
    whitening=CIFAR10,
    train=tuple(f"data_batch_{i}" for i in range(1, 6)),
    test=("test_batch",),
    label_bytes=1,
    label_key="labels",
    class_names=_CIFAR10_NAMES,
)
_HUNDRED = _Flavour(
    name="cifar100",
    classes=100,
    whitening=CIFAR100,
    train=("train",),
    test=("test",),
    label_bytes=2,
    label_key="fine_labels",
    class_names=None,
)


@register(
    "datasets",
    "cifar10",
    summary="the folder, the tar.gz or one batch of CIFAR-10, binary or python version",
    paper=PAPER,
)
def read_cifar10(path: Path, split: str = "train") -> Dataset:
    """CIFAR-10 [Krizhevsky, 2009]."""
    return _read(path, split, _TEN)


@register("datasets", "cifar100", summary="the same for CIFAR-100 with its fine labels", paper=PAPER)
def read_cifar100(path: Path, split: str = "train") -> Dataset:
    """CIFAR-100 with its fine labels [Krizhevsky, 2009]."""
    return _read(path, split, _HUNDRED)


def _read(path: Path, split: str, flavour: _Flavour) -> Dataset:
    batches = _batches(path, flavour.train if split == "train" else flavour.test)
    parsed = [_parse(raw, path / name, flavour) for name, raw in batches]
    return Dataset(
        name=flavour.name,
        images=image_tensor(path, np.concatenate([pixels for pixels, _ in parsed])),
        labels=label_tensor(path, np.concatenate([labels for _, labels in parsed])),
        classes=flavour.classes,
        whitening=flavour.whitening,
        class_names=flavour.class_names,
        credit=f"{flavour.name}, A. Krizhevsky 2009, read from {path.name}.",
    )


def _batches(path: Path, stems: Sequence[str]) -> list[tuple[str, bytes]]:
    wanted = {name: stem for stem in stems for name in (stem, stem + ".bin")}
    if path.is_dir():
        batches = _from_folder(path, wanted)
    elif path.name.endswith((".tar.gz", ".tgz", ".tar")):
        batches = _from_tar(path, wanted)
    else:
        return [("", contents(path, _MOST))]
    if not batches:
        raise DataError(f"{path}: expected {stems[0]} or {stems[0]}.bin in it, found neither.")
    return sorted(batches.items())


def _from_folder(path: Path, wanted: Mapping[str, str]) -> dict[str, bytes]:
    """Each batch once, be it there in both versions, from the folder or those directly in it."""
    files = sorted([*path.glob("*"), *path.glob("*/*")], reverse=True)
    chosen = {wanted[p.name]: p for p in files if p.name in wanted and p.is_file()}
    return {stem: contents(p, _MOST) for stem, p in chosen.items()}


def _from_tar(path: Path, wanted: Mapping[str, str]) -> dict[str, bytes]:
    batches = {}
    try:
        with opened(path) as file:
            # A stream: nothing is ever sought or unpacked to disk, and never beyond the bound.
            bounded = Bounded(file, 2 * _MOST, path)
            with tarfile.open(fileobj=bounded, mode="r|") as archive:
                for member in archive:
                    stem = wanted.get(Path(member.name).name)
                    # A sparse member could announce any length without bytes behind it.
                    if stem and member.isreg() and not member.issparse() and member.size <= _MOST:
                        content = archive.extractfile(member)
                        batches[stem] = content.read() if content else b""
    except (tarfile.TarError, zlib.error, ValueError) as error:
        raise DataError(f"{path}: the archive is truncated or corrupt ({error}): fetch it again.") from None
    return batches


def _parse(raw: bytes, path: Path, flavour: _Flavour) -> tuple[Array, Array]:
    # A binary record begins with a label below 100, a pickle with the byte 0x80.
    pixels, labels = _pickled(raw, path, flavour) if raw[:1] == b"\x80" else _binary(raw, path, flavour)
    if labels.min() < 0 or labels.max() >= flavour.classes:
        raise DataError(
            f"{path}: labels must lie in [0, {flavour.classes}), got {labels.min()} to {labels.max()}: is it "
            f"{flavour.name}?"
        )
    return pixels.reshape(-1, 3, 32, 32), labels


def _binary(raw: bytes, path: Path, flavour: _Flavour) -> tuple[Array, Array]:
    record = flavour.label_bytes + _PIXELS
    if not raw or len(raw) % record:
        raise DataError(
            f"{path}: a {flavour.name} batch must be whole records of {record} bytes, got {len(raw)} bytes: "
            "it is truncated, or another dataset."
        )
    rows = np.frombuffer(raw, np.uint8).reshape(-1, record)
    return rows[:, flavour.label_bytes :], rows[:, flavour.label_bytes - 1].astype(np.int64)


def _pickled(raw: bytes, path: Path, flavour: _Flavour) -> tuple[Array, Array]:
    value = plain_values(raw, path)
    held = {k.decode("latin-1") if isinstance(k, bytes) else k: v for k, v in _as_dict(value).items()}
    pixels, labels = held.get("data"), held.get(flavour.label_key)
    if not isinstance(labels, list) or not labels or not all(type(y) is int for y in labels):
        raise DataError(f"{path}: expected whole numbers under {flavour.label_key!r}: is it {flavour.name}?")
    array = byte_array(pixels, path)
    if array.shape != (len(labels), _PIXELS):
        raise DataError(f"{path}: expected data of shape {(len(labels), _PIXELS)}, got {array.shape}.")
    return array, np.array(labels)


def _as_dict(value: object) -> dict[object, object]:
    return value if isinstance(value, dict) else {}
