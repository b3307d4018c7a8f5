"""Files of others: plain ones inside the folder alone, of the length that was promised, never through a link."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import stat
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from safetensors.torch import save
from torch import Tensor

from fedglass.core.errors import DataError, UsageError
from fedglass.recordings.format import ArrayFacts, FileRef

if sys.platform != "win32":
    import fcntl

# Named arrays on their way to a file and back: in order, of plain types, no pickle.


Arrays = Mapping[str, Any] | Sequence[Any]
"""Tensors or NumPy arrays by name, or a list of them, whose names are then '0', '1', ..."""
Form = Literal["state", "update"]

DTYPE_NAMES = {
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
    if tensor.layout is not torch.strided or tensor.dtype not in DTYPE_NAMES:
        raise UsageError(
            f"The array {name!r} must be dense, of floats, integers or booleans, got {tensor.dtype} "
            f"({tensor.layout}): convert it first."
        )
    return tensor


def to_safetensors(tensors: Mapping[str, Tensor], file: str, form: Form) -> tuple[bytes, FileRef]:
    """The bytes of a safetensors file, and what a manifest says of it."""
    # safetensors refuses tensors that share memory, as tied weights do.
    data = save({name: tensor.contiguous().clone() for name, tensor in tensors.items()})
    arrays = [ArrayFacts(name=n, dtype=DTYPE_NAMES[t.dtype], shape=list(t.shape)) for n, t in tensors.items()]
    digest = hashlib.sha256(data).hexdigest()
    return data, FileRef(file=file, sha256=digest, bytes=len(data), form=form, arrays=arrays)


CHUNK = 2**20


@contextmanager
def open_plain_file(path: Path) -> Iterator[int]:
    """A descriptor of a plain file; links, folders and pipes are refused, and nothing is waited for."""
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    try:
        fd = os.open(path, flags)
    except OSError as error:
        raise DataError(_why_not(path, error)) from error
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise DataError(f"{path} is no plain file: restore the bundle from where it was recorded.")
        yield fd
    except OSError as error:
        raise DataError(f"Cannot read {path}: {error.strerror}; copy the bundle again.") from error
    finally:
        os.close(fd)


def _why_not(path: Path, error: OSError) -> str:
    if error.errno == errno.ENOENT:
        return f"{path} is missing: the bundle is not whole; copy all of it, or record it again."
    if error.errno in (errno.EACCES, errno.EPERM):
        return f"Cannot read {path}: {error.strerror}; only the user who recorded it may, ask that one for a copy."
    if error.errno in (errno.ELOOP, errno.EMLINK):
        return f"{path} is a link, expected the file itself: copy the bundle with its files."
    return f"Cannot read {path}: {error.strerror}; name the folder of a bundle."


def read_at_most(path: Path, *, most: int) -> bytes:
    """All bytes of a file that has no more than so many."""
    with open_plain_file(path) as fd:
        length = os.fstat(fd).st_size
        if length > most:
            raise DataError(f"{path} has {length} bytes, expected at most {most}: it is another file.")
        return b"".join(_chunks(fd, most))


def read_exactly(path: Path, length: int, sha256: str) -> bytes:
    """The bytes of a file whose length and digest are known."""
    with open_plain_file(path) as fd:
        _check_length(path, fd, length)
        data = b"".join(_chunks(fd, length))
    _check_digest(path, hashlib.sha256(data).hexdigest(), sha256)
    return data


def check_contents(path: Path, length: int, sha256: str) -> None:
    """The same check without keeping the bytes."""
    digest = hashlib.sha256()
    with open_plain_file(path) as fd:
        _check_length(path, fd, length)
        for chunk in _chunks(fd, length):
            digest.update(chunk)
    _check_digest(path, digest.hexdigest(), sha256)


def _check_length(path: Path, fd: int, length: int) -> None:
    found = os.fstat(fd).st_size
    if found != length:
        raise DataError(
            f"{path} has {found} bytes, expected {length}: it was cut short or exchanged; copy the bundle again."
        )


def _check_digest(path: Path, found: str, expected: str) -> None:
    if found != expected:
        raise DataError(
            f"{path} is not the file that was recorded (other SHA-256): it is damaged or was exchanged; copy the "
            "bundle again."
        )


def _chunks(fd: int, most: int) -> Iterator[bytes]:
    """Up to so many bytes and one more, lest a file that grows is read for ever."""
    left = most + 1
    while left > 0 and (chunk := os.read(fd, min(CHUNK, left))):
        left -= len(chunk)
        yield chunk


# One writer at a time in a folder: others wait, in this process and in every other.


LOCK = ".lock"


@contextlib.contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Hold the folder; the system lets go of it when the process ends, however that happens."""
    try:
        fd = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise UsageError(f"Cannot write to {folder}: {error.strerror}; choose another folder.") from error
    try:
        if sys.platform != "win32":
            fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)
