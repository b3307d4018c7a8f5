"""Short hashes that name a value: the same value has the same name in every process and on every day."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from fedglass.core.params import Params

_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


def digest(*parts: str) -> str:
    """The SHA-256 of a list of texts, in which it also counts where one text ends.

    >>> digest("ab", "c") == digest("a", "bc")
    False
    """
    state = hashlib.sha256()
    for part in parts:
        raw = part.encode()
        state.update(len(raw).to_bytes(8, "big") + raw)
    return state.hexdigest()


def spelled(value: object) -> str:
    """The repr without memory addresses, which change from run to run.

    >>> class Part: ...
    >>> spelled(Part()).endswith("Part object>")
    True
    """
    return _ADDRESS.sub("", repr(value))


def of_tensor(tensor: Tensor) -> str:
    """Values, shape and type.

    >>> of_tensor(torch.zeros(2)) == of_tensor(torch.zeros(2, 1))
    False
    """
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    state = hashlib.sha256(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
    state.update(flat.view(torch.uint8).numpy().data)
    return state.hexdigest()


def of_params(params: Params) -> str:
    """Named tensors, in the order of their names."""
    return digest(*(text for name in sorted(params) for text in (name, of_tensor(params[name]))))


def of_model(model: nn.Module) -> str:
    """Architecture as printed, class, weights and buffers."""
    state: Mapping[str, Tensor] = model.state_dict()
    return digest(type(model).__qualname__, spelled(model), of_params(state))
