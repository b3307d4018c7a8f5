"""CIFAR-10 and CIFAR-100, binary and "python" version, as a folder, the official tar.gz or one batch."""

from __future__ import annotations

import math
import pickletools
import struct
import tarfile
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from fedglass.core.errors import DataError
from fedglass.core.registry import register
from fedglass.core.types import Whitening
from fedglass.data.dataset import CIFAR10, CIFAR100, Dataset
from fedglass.data.files import Array, Bounded, contents, image_tensor, label_tensor, opened

_PIXELS = 3 * 32 * 32
_MOST = 256 << 20  # the largest official file, CIFAR-100's python training batch, has 155 MB
_CIFAR10_NAMES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


PAPER = (
    "Krizhevsky: Learning Multiple Layers of Features from Tiny Images, 2009, "
    "https://www.cs.toronto.edu/~kriz/learning-features-2009-TR.pdf"
)


@register(
    "datasets",
    "cifar10",
    summary="the folder, the tar.gz or one batch of CIFAR-10, binary or python version",
    paper=PAPER,
)
def read_cifar10(path: Path, split: str = "train") -> Dataset:
    """CIFAR-10 [Krizhevsky, 2009]."""
    stems = [f"data_batch_{i}" for i in range(1, 6)] if split == "train" else ["test_batch"]
    return _read(path, stems, 10, CIFAR10, _CIFAR10_NAMES)


@register("datasets", "cifar100", summary="the same for CIFAR-100 with its fine labels", paper=PAPER)
def read_cifar100(path: Path, split: str = "train") -> Dataset:
    """CIFAR-100 with its fine labels [Krizhevsky, 2009]."""
    return _read(path, ["train" if split == "train" else "test"], 100, CIFAR100)


def _read(
    path: Path, stems: Sequence[str], classes: int, whitening: Whitening, class_names: tuple[str, ...] | None = None
) -> Dataset:
    parsed = [_parse(raw, path / name, classes) for name, raw in _batches(path, stems)]
    return Dataset(
        name=f"cifar{classes}",
        images=image_tensor(path, np.concatenate([pixels for pixels, _ in parsed])),
        labels=label_tensor(path, np.concatenate([labels for _, labels in parsed])),
        classes=classes,
        whitening=whitening,
        class_names=class_names,
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
    except (tarfile.TarError, zlib.error, ValueError, OverflowError, struct.error, RecursionError) as error:
        raise DataError(f"{path}: the archive is truncated or corrupt ({error}): fetch it again.") from None
    return batches


def _parse(raw: bytes, path: Path, classes: int) -> tuple[Array, Array]:
    # A binary record begins with a label below 100, a pickle with the byte 0x80.
    pixels, labels = _pickled(raw, path, classes) if raw[:1] == b"\x80" else _binary(raw, path, classes)
    if labels.min() < 0 or labels.max() >= classes:
        raise DataError(
            f"{path}: labels must lie in [0, {classes}), got {labels.min()} to {labels.max()}: is it cifar{classes}?"
        )
    return pixels.reshape(-1, 3, 32, 32), labels


def _binary(raw: bytes, path: Path, classes: int) -> tuple[Array, Array]:
    label_bytes = 1 if classes == 10 else 2  # the last of them is the (fine) label
    record = label_bytes + _PIXELS
    if not raw or len(raw) % record:
        raise DataError(
            f"{path}: a cifar{classes} batch must be whole records of {record} bytes, got {len(raw)} bytes: "
            "it is truncated, or another dataset."
        )
    rows = np.frombuffer(raw, np.uint8).reshape(-1, record)
    return rows[:, label_bytes:], rows[:, label_bytes - 1].astype(np.int64)


def _pickled(raw: bytes, path: Path, classes: int) -> tuple[Array, Array]:
    value = plain_values(raw, path)
    entries = value.items() if isinstance(value, dict) else ()
    held = {k.decode("latin-1") if isinstance(k, bytes) else k: v for k, v in entries}
    label_key = "labels" if classes == 10 else "fine_labels"
    pixels, labels = held.get("data"), held.get(label_key)
    if not isinstance(labels, list) or not labels or not all(type(y) is int for y in labels):
        raise DataError(f"{path}: expected whole numbers under {label_key!r}: is it cifar{classes}?")
    array = byte_array(pixels, path)
    if array.shape != (len(labels), _PIXELS):
        raise DataError(f"{path}: expected data of shape {(len(labels), _PIXELS)}, got {array.shape}.")
    return array, np.array(labels)


# A pickle is read without unpickling it.
#
# Loading a pickle runs what it names: any function, with any arguments. Even a loader that admits numpy's
# functions alone is no shelter, since a forged dtype state can make numpy take bytes for pointers. So this is a
# small machine of its own over the opcodes of a pickle: it builds dicts, lists, tuples, numbers and text, and
# where a pickle says "call this" it only writes down what was named. Nothing is imported or called, and no
# memory is reserved by an announced size; an array of bytes is recognised by the names that numpy gives it, and
# every other name is refused.
#
# Python hashes and compares nested values by recursion: the hash of a deep tuple as a key overruns the stack, and that
# of a tuple that holds the same tuple twice, sixty times over, never ends. So keys are text or whole numbers, nesting
# is bounded, and nothing is copied that a few bytes can name again.


_ARRAYS = ("numpy.core.multiarray _reconstruct", "numpy._core.multiarray _reconstruct")
_NAMES = (*_ARRAYS, "numpy ndarray", "numpy dtype")
_TEXTS = frozenset(f"{size}{kind}" for kind in ("BINSTRING", "BINUNICODE", "BINBYTES") for size in ("", "SHORT_"))
_NUMBERS = ("BININT", "BININT1", "BININT2", "INT", "LONG1", "BINFLOAT")
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_MARK = object()
_KEYS = (str, bytes, int)
_MOST_STEPS = 1 << 19  # opcodes; CIFAR-100's python training batch has about 200,000
_MOST_LEVELS = 16
_MOST_SIDES = 8  # of an array


@dataclass(eq=False)
class _Named:
    """A call that was written down instead of made: what was named, with what, and the state given to it."""

    name: str
    arguments: tuple[Any, ...] = ()
    state: Any = None


def plain_values(raw: bytes, path: Path) -> object:
    """The value that a pickle describes, where it is made of plain values and arrays of bytes.

    >>> import pickle
    >>> plain_values(pickle.dumps({"labels": [1, 2], "batch": (3, "a")}, protocol=2), Path("x"))
    {'labels': [1, 2], 'batch': (3, 'a')}
    """
    stack: list[Any] = []
    memory: dict[int, Any] = {}
    try:
        for opcode, argument, _ in islice(pickletools.genops(raw), _MOST_STEPS):
            if opcode.name == "STOP":
                value = stack.pop()
                _check_levels(value)
                return value
            _step(opcode.name, argument, stack, memory, path)
        raise ValueError(f"it has more than {_MOST_STEPS} steps")
    except (ValueError, IndexError, KeyError, TypeError, AttributeError) as error:
        raise DataError(
            f"{path}: not a readable pickle of plain values ({error}): it is truncated or corrupt."
        ) from None


def _step(opcode: str, argument: Any, stack: list[Any], memory: dict[int, Any], path: Path) -> None:
    """Do what an opcode says with the stack and the memory of a pickle, as the format defines them."""
    match opcode:
        case _ if opcode in _NUMBERS or opcode in _TEXTS:
            stack.append(argument)
        case _ if opcode in _CONSTANTS:
            stack.append(_CONSTANTS[opcode])
        case _ if opcode in _TUPLES:
            stack.append(tuple(_take(stack, _TUPLES[opcode])))
        case "PROTO" | "FRAME":
            pass
        case "MARK":
            stack.append(_MARK)
        case "EMPTY_DICT":
            stack.append({})
        case "EMPTY_LIST":
            stack.append([])
        case "TUPLE":
            stack.append(tuple(_since_mark(stack)))
        case "APPEND" | "APPENDS":
            items = _take(stack, 1) if opcode == "APPEND" else _since_mark(stack)
            _top(stack, list).extend(items)
        case "SETITEM" | "SETITEMS":
            items = _take(stack, 2) if opcode == "SETITEM" else _since_mark(stack)
            if not all(type(key) in _KEYS for key in items[::2]):
                raise TypeError("expected text or whole numbers as keys")
            _top(stack, dict).update(zip(items[::2], items[1::2], strict=True))
        case "BINPUT" | "LONG_BINPUT":
            memory[argument] = stack[-1]
        case "MEMOIZE":
            memory[len(memory)] = stack[-1]
        case "BINGET" | "LONG_BINGET":
            stack.append(memory[argument])
        case "GLOBAL":
            stack.append(_named(argument, path))
        case "STACK_GLOBAL":
            module, name = _take(stack, 2)
            stack.append(_named(f"{module} {name}", path))
        case "REDUCE":
            called, arguments = _take(stack, 2)
            if not isinstance(arguments, tuple):
                raise TypeError("expected a tuple of arguments")
            stack.append(_Named(called.name, arguments))
        case "BUILD":
            (state,) = _take(stack, 1)
            _top(stack, _Named).state = state
        case _:
            raise DataError(f"{path}: the pickle uses {opcode}, which plain data has no need of: refused.")


def _named(name: str, path: Path) -> _Named:
    if name not in _NAMES:
        raise DataError(
            f"{path}: the pickle names {name.replace(' ', '.')!r}, which could run code: refused. "
            "Use the binary version of the data."
        )
    return _Named(name)


def _top(stack: list[Any], kind: type[Any]) -> Any:
    if not isinstance(stack[-1], kind):
        raise TypeError(f"expected a {kind.__name__}")
    return stack[-1]


def _take(stack: list[Any], count: int) -> list[Any]:
    if len(stack) < count:
        raise IndexError("its stack runs empty")
    taken = stack[-count:]
    del stack[-count:]
    return taken


def _since_mark(stack: list[Any]) -> list[Any]:
    at = len(stack) - 1
    while stack[at] is not _MARK:
        at -= 1
        if at < 0:
            raise IndexError("a mark is missing")
    taken = stack[at + 1 :]
    del stack[at:]
    return taken


def _check_levels(value: object) -> None:
    """Refuse deep nesting; each container is looked into once, however often it is named."""
    level, seen = [value], set[int]()
    for _ in range(_MOST_LEVELS):
        containers = {id(entry): entry for entry in level if isinstance(entry, (dict, list, tuple, _Named))}
        level = [inner for key, entry in containers.items() if key not in seen for inner in _entries(entry)]
        seen |= containers.keys()
        if not level:
            return
    raise ValueError(f"it is nested deeper than {_MOST_LEVELS} levels")


def _entries(container: Any) -> Iterable[Any]:
    """Return what is directly inside a container."""
    if isinstance(container, _Named):
        return (container.arguments, container.state)
    return container.values() if isinstance(container, dict) else container


def byte_array(value: object, path: Path) -> Array:
    """The array of unsigned bytes that a written-down call stands for."""
    if isinstance(value, _Named) and value.name in _ARRAYS:
        match value.state:
            case (_, tuple() as shape, _Named(name="numpy dtype", arguments=("u1", *_)), False | 0, raw):
                data = raw.encode("latin-1") if isinstance(raw, str) else raw
                sound = isinstance(data, bytes) and len(shape) <= _MOST_SIDES
                if sound and all(type(side) is int and side >= 0 for side in shape) and math.prod(shape) == len(data):
                    return np.frombuffer(data, np.uint8).reshape(shape)
    raise DataError(f"{path}: expected an array of unsigned bytes, found something else: fetch the file again.")
