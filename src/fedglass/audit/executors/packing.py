"""Jobs and results as bytes."""

from __future__ import annotations

import io
import pickle
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedglass.core.errors import UsageError


class Unsendable(UsageError):
    """A job that only the process that made it can do."""


def packed(value: object) -> bytes:
    """The value as bytes, or a sentence on why it has none."""
    buffer = io.BytesIO()
    try:
        _Packer(buffer, protocol=pickle.HIGHEST_PROTOCOL).dump(value)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise Unsendable(
            f"The case can not be sent to a worker process ({error}): define the model and the parts in an "
            "importable module, or set workers to 1."
        ) from error
    return buffer.getvalue()


def unpacked(raw: bytes) -> Any:
    """What was packed, by ourselves: bytes of others are not to be trusted with this."""
    return pickle.loads(raw)


class _Packer(pickle.Pickler):
    """Plain tensors as their entries: torch would write an archive for each of the hundreds in a round's messages."""

    def reducer_override(self, value: Any) -> Any:
        if type(value) is Tensor and _is_plain(value):
            return _tensor, (value.numpy().tobytes(), value.dtype, tuple(value.shape))
        return NotImplemented


def _is_plain(tensor: Tensor) -> bool:
    """Whether its entries are all there is to it; one that shares them or has a history is left to torch."""
    return (
        tensor.device.type == "cpu"
        and tensor.layout is torch.strided
        and tensor.dtype in (torch.float32, torch.float64, torch.int64)
        and not tensor.requires_grad
        and tensor.is_contiguous()
        and tensor.untyped_storage().nbytes() == tensor.nbytes
        and not (tensor.is_neg() or vars(tensor))
    )


def _tensor(raw: bytes, kind: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    """Into memory of torch's own, which is aligned alike in every process: the last bits of a product depend on it."""
    found = torch.empty(shape, dtype=kind)
    flat = found.view(-1).numpy()
    flat[:] = np.frombuffer(raw, dtype=flat.dtype)
    return found
