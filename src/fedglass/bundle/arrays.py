"""Named arrays on their way to a file and back: in order, of plain types, no pickle."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import torch
from safetensors.torch import save
from torch import Tensor

from fedglass.bundle.manifest import ArrayFacts, Held
from fedglass.core.errors import UsageError

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
