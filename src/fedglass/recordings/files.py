"""Named arrays on their way to a file and back, and files of a bundle that may come from others.

Arrays are written in order and in plain types, without pickle. Files are read only if they are regular files of the
length and digest that the bundle names. One writer at a time holds a folder.
"""

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
from fedglass.recordings.format import ArrayFacts, DType, FileRef

Arrays = Mapping[str, Any] | Sequence[Any]
"""Tensors or NumPy arrays by name, or a list of them, which get the names '0', '1', ..."""
Form = Literal["state", "update"]
LOCK = ".lock"

DTYPE_NAMES: Mapping[torch.dtype, DType] = {
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


def as_tensors(arrays: Arrays) -> dict[str, Tensor]:
    """Return arrays as tensors that can be written: detached, on the CPU, in the order in which they came."""
    named = arrays.items() if isinstance(arrays, Mapping) else ((str(i), a) for i, a in enumerate(arrays))
    tensors = {str(name): _as_tensor(str(name), array) for name, array in named}
    if not tensors:
        raise UsageError("Expected at least one array of a model, got none: record its whole state.")
    return tensors


def _as_tensor(name: str, array: Any) -> Tensor:
    if isinstance(array, Tensor):
        tensor = array.detach().cpu()
    else:
        try:
            tensor = torch.from_numpy(np.array(array))  # a copy: the array may be read-only or change later
        except TypeError as error:
            raise UsageError(f"The array {name!r} must hold numbers, got {type(array).__name__}: {error}.") from error
    if tensor.layout is not torch.strided or tensor.dtype not in DTYPE_NAMES:
        raise UsageError(
            f"The array {name!r} must be dense, of floats, integers or booleans, got {tensor.dtype} "
            f"({tensor.layout}): convert it first."
        )
    return tensor


def to_safetensors(tensors: Mapping[str, Tensor], file: str, form: Form) -> tuple[bytes, FileRef]:
    """Return the bytes of a safetensors file, and the entry that names it in the JSON of a bundle."""
    # safetensors refuses tensors that share memory, as tied weights do.
    data = save({name: tensor.contiguous().clone() for name, tensor in tensors.items()})
    arrays = [ArrayFacts(name=n, dtype=DTYPE_NAMES[t.dtype], shape=list(t.shape)) for n, t in tensors.items()]
    digest = hashlib.sha256(data).hexdigest()
    return data, FileRef(file=file, sha256=digest, bytes=len(data), form=form, arrays=arrays)


def read_at_most(path: Path, *, most: int) -> bytes:
    """Return the bytes of a file that has at most `most` of them."""
    with _opened(path, most) as file:
        return file.read(os.fstat(file.fileno()).st_size)


def read_exactly(path: Path, length: int, sha256: str) -> bytes:
    """Return the bytes of a file after a check of its length and its digest."""
    with _opened(path) as file:
        found_length = os.fstat(file.fileno()).st_size
        if found_length != length:
            raise DataError(
                f"{path} has {found_length} bytes, expected {length}: it was cut short or exchanged; copy the bundle "
                "again."
            )
        data = file.read(length)
    if hashlib.sha256(data).hexdigest() != sha256:
        raise DataError(
            f"{path} is not the file that was recorded (other SHA-256): it is damaged or was exchanged; copy the "
            "bundle again."
        )
    return data


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


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Hold a folder until the end of the block or of the process; other writers wait."""
    with ExitStack() as stack:
        try:
            stack.enter_context(locked(folder / LOCK))
        except OSError as error:
            raise UsageError(f"Cannot write to {folder}: {error.strerror}; choose another folder.") from error
        yield
