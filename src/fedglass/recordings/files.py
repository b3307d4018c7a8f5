"""Files of others: plain ones inside the folder alone, of the length that was promised, never through a link."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from io import BufferedReader
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from safetensors.torch import save
from torch import Tensor

from fedglass.core.errors import DataError, UsageError
from fedglass.core.files import locked, open_file
from fedglass.recordings.format import ArrayFacts, Held

# Named arrays on their way to a file and back: in order, of plain types, no pickle.


Arrays = Mapping[str, Any] | Sequence[Any]
"""Tensors or NumPy arrays by name, or a list of them, whose names are then '0', '1', ..."""
Form = Literal["state", "update"]

NAMES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
"""Types of tensors as safetensors calls them."""


def tensors_of(arrays: Arrays) -> dict[str, Tensor]:
    """What is to be written, detached and on the CPU, in the order in which it came."""
    named = arrays.items() if isinstance(arrays, Mapping) else ((str(i), a) for i, a in enumerate(arrays))
    found = {str(name): _tensor(str(name), array) for name, array in named}
    if not found:
        raise UsageError("Expected at least one array of a model, got none: record its whole state.")
    return found


def _tensor(name: str, array: Any) -> Tensor:
    if isinstance(array, Tensor):
        tensor = array.detach().cpu()
    else:
        try:
            tensor = torch.from_numpy(np.array(array))  # a copy: what comes may be read-only or change later
        except TypeError as error:
            raise UsageError(f"The array {name!r} must hold numbers, got {type(array).__name__}: {error}.") from error
    if tensor.layout is not torch.strided or tensor.dtype not in NAMES:
        raise UsageError(
            f"The array {name!r} must be dense, of floats, integers or booleans, got {tensor.dtype} "
            f"({tensor.layout}): convert it first."
        )
    return tensor


def stored(tensors: Mapping[str, Tensor], file: str, form: Form) -> tuple[bytes, Held]:
    """The bytes of a safetensors file, and what a manifest says of it."""
    # safetensors refuses tensors that share memory, as tied weights do.
    data = save({name: tensor.contiguous().clone() for name, tensor in tensors.items()})
    arrays = [ArrayFacts(name=n, dtype=NAMES[t.dtype], shape=list(t.shape)) for n, t in tensors.items()]
    digest = hashlib.sha256(data).hexdigest()
    return data, Held(file=file, sha256=digest, bytes=len(data), form=form, arrays=arrays)


@contextmanager
def _opened(path: Path, limit: int | None = None) -> Iterator[BufferedReader]:
    """Open a file of a bundle; what is wrong with it becomes a DataError."""
    try:
        with open_file(path, limit=limit) as file:
            yield file
    except FileNotFoundError as error:
        raise DataError(f"{path} is missing: the bundle is incomplete; copy all of it, or record it again.") from error
    except PermissionError as error:
        raise DataError(
            f"Cannot read {path}: {error.strerror}; only the user who recorded it may, ask that one for a copy."
        ) from error
    except OSError as error:
        raise DataError(f"Cannot read {path}: {error.strerror}; copy the bundle again with all its files.") from error


def contents(path: Path, *, most: int) -> bytes:
    """Return the bytes of a file that has no more than `most`."""
    with _opened(path, most) as file:
        return file.read(os.fstat(file.fileno()).st_size)


def exact_contents(path: Path, length: int, sha256: str) -> bytes:
    """Return the bytes of a file after a check of its length and its digest."""
    with _opened(path) as file:
        _check_length(path, file, length)
        data = file.read(length)
    _check_digest(path, hashlib.sha256(data).hexdigest(), sha256)
    return data


def check_contents(path: Path, length: int, sha256: str) -> None:
    """Check the length and the digest of a file without keeping its bytes."""
    with _opened(path) as file:
        _check_length(path, file, length)
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    _check_digest(path, digest, sha256)


def _check_length(path: Path, file: BufferedReader, expected: int) -> None:
    length = os.fstat(file.fileno()).st_size
    if length != expected:
        raise DataError(
            f"{path} has {length} bytes, expected {expected}: it was cut short or exchanged; copy the bundle again."
        )


def _check_digest(path: Path, digest: str, expected: str) -> None:
    if digest != expected:
        raise DataError(
            f"{path} is not the file that was recorded (other SHA-256): it is damaged or was exchanged; copy the "
            "bundle again."
        )


# One writer at a time in a folder: others wait, in this process and in every other.


LOCK = ".lock"


@contextmanager
def waiting(folder: Path) -> Iterator[None]:
    """Hold the folder; the system lets go of it when the process ends, however that happens."""
    with ExitStack() as stack:
        try:
            stack.enter_context(locked(folder / LOCK))
        except OSError as error:
            raise UsageError(f"Cannot write to {folder}: {error.strerror}; choose another folder.") from error
        yield
