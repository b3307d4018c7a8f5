"""The files of a bundle: `manifest.json`, one JSON file for each round, and arrays as safetensors, without pickle.

The manifest anchors every other file by its digest. Files may come from others: they are read only if they are regular
files of the length and digest that the bundle names. One writer at a time holds a folder.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from io import BufferedReader
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch
from pydantic import AfterValidator, BaseModel, Field, StringConstraints
from safetensors.torch import save
from torch import Tensor

from fedglass.core.errors import DataError, UsageError
from fedglass.core.files import locked, open_file
from fedglass.recordings.facts import OF_CLIENT, OF_FEDERATION, OF_ROUND, Source, Text, Words

FORMAT: Literal[2] = 2
"""Format 1 is a saved transcript (`fedglass.recordings.saved_transcripts`)."""
MANIFEST = "manifest.json"
UNSIGNED = "0" * 64
MOST_BYTES = 16 * 2**30
"""The largest size of one file."""

Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
TensorFile = Annotated[str, StringConstraints(pattern=r"^round-[0-9]{5,9}-[a-z]{4,10}(-[0-9]{5,9})?\.safetensors$")]
RoundFile = Annotated[str, StringConstraints(pattern=r"^round-[0-9]{5,9}-[0-9]{4,9}\.json$")]
Index = Annotated[int, Field(ge=0, lt=10**9)]
Length = Annotated[int, Field(ge=0, le=2**40)]
DType = Literal["F64", "F32", "F16", "BF16", "I64", "I32", "I16", "I8", "U8", "BOOL"]
"""The types that an array may have, as safetensors calls them."""
Key = Annotated[str, StringConstraints(max_length=500)]


AnySheet = Annotated[dict[Key, dict[Source, Any]], Field(max_length=1000)]
FederationSheet = Annotated[AnySheet, AfterValidator(OF_FEDERATION.checked)]
RoundSheet = Annotated[AnySheet, AfterValidator(OF_ROUND.checked)]
ClientSheet = Annotated[AnySheet, AfterValidator(OF_CLIENT.checked)]


class ArrayFacts(BaseModel, frozen=True, extra="forbid", strict=True):
    """One tensor of a file."""

    name: Key
    dtype: DType
    shape: Annotated[list[Length], Field(max_length=16)]


class FileRef(BaseModel, frozen=True, extra="forbid", strict=True):
    """A file of tensors and what it must be."""

    file: TensorFile
    sha256: Sha256
    bytes: Length
    form: Literal["state", "update"]
    """The weights themselves, or what is to be added to those that were sent."""
    arrays: Annotated[list[ArrayFacts], Field(min_length=1, max_length=100_000)]
    """In the order in which they were sent: a list of NumPy arrays has no other names."""


class MessageFacts(BaseModel, frozen=True, extra="forbid", strict=True):
    """A client in a round."""

    client: Text
    received: FileRef | None = None
    """What the server got; None where that was not seen."""
    sent: FileRef | None = None
    """What this client was sent, where that is not what all were."""
    absent: Words | None = None
    """Why it was called and sent nothing."""
    facts: ClientSheet = {}


class RoundFacts(BaseModel, frozen=True, extra="forbid", strict=True):
    """One round."""

    index: Index
    sent: FileRef | None = None
    aggregated: FileRef | None = None
    messages: Annotated[list[MessageFacts], Field(max_length=100_000)] = []
    facts: RoundSheet = {}


class RoundRef(BaseModel, frozen=True, extra="forbid", strict=True):
    """A round's own file."""

    index: Index
    file: RoundFile
    sha256: Sha256
    bytes: Length


class Manifest(BaseModel, frozen=True, extra="forbid", strict=True):
    """`manifest.json`."""

    format: Literal[2] = FORMAT
    sha256: Sha256 = UNSIGNED
    """Of the file's own bytes, with these 64 digits as zeros."""
    fedglass: Words
    writer: Text = "recorder"
    """Who recorded: `server`, a client's name, ..."""
    facts: FederationSheet = {}
    clients: Annotated[list[Text], Field(max_length=100_000)] = []
    """In the order in which they were first met."""
    always: Annotated[dict[Text, ClientSheet], Field(max_length=100_000)] = {}
    """Facts of clients that hold in every round."""
    rounds: Annotated[list[RoundRef], Field(max_length=100_000)] = []


def signed(manifest: Manifest) -> str:
    """Return the text of a manifest with its own digest in it."""
    text = manifest.model_copy(update={"sha256": UNSIGNED}).model_dump_json(indent=1) + "\n"
    return text.replace(UNSIGNED, hashlib.sha256(text.encode()).hexdigest(), 1)


def is_signed(data: bytes, claimed: str) -> bool:
    """Check that the manifest's bytes are those that it was signed with.

    >>> data = signed(Manifest(fedglass="1")).encode()
    >>> is_signed(data, Manifest.model_validate_json(data).sha256), is_signed(data + b" ", "0" * 64)
    (True, False)
    """
    return hashlib.sha256(data.replace(claimed.encode(), UNSIGNED.encode(), 1)).hexdigest() == claimed


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


def to_safetensors(tensors: Mapping[str, Tensor]) -> tuple[bytes, str]:
    """Return the bytes of a safetensors file, and their digest."""
    # safetensors refuses tensors that share memory, as tied weights do.
    data = save({name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()})
    return data, hashlib.sha256(data).hexdigest()


def tensor_file(tensors: Mapping[str, Tensor], file: str, form: Form) -> tuple[bytes, FileRef]:
    """Return the bytes of a safetensors file, and the entry that names it in the JSON of a bundle."""
    data, digest = to_safetensors(tensors)
    arrays = [ArrayFacts(name=n, dtype=DTYPE_NAMES[t.dtype], shape=list(t.shape)) for n, t in tensors.items()]
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
        with writing_to(folder):
            stack.enter_context(locked(folder / LOCK))
        yield


@contextmanager
def writing_to(folder: Path, advice: str = "choose another folder") -> Iterator[None]:
    """Turn an error of the disk into one that says which folder cannot be written to, and what to do."""
    try:
        yield
    except OSError as error:
        raise UsageError(f"Cannot write to {folder}: {error.strerror}; {advice}.") from error
