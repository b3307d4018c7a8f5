"""Weights of a network that was trained for other classes."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
from safetensors import SafetensorError, safe_open
from torch import Generator, nn

from fedglass.core.errors import DataError, ModelError
from fedglass.models.init import KaimingNormal
from fedglass.models.weights import load_weights


@dataclass(frozen=True)
class Transfer:
    """All weights and running statistics from a safetensors file, but for a last layer of another size.

    That one is drawn anew [He et al., 2015]; all else must be of the same architecture.
    """

    path: str
    digest: str = ""
    """The file's SHA-256, where that is a part of an experiment's identity."""

    def apply(self, model: nn.Module, generator: Generator) -> None:
        name, head = _last_dense(model)
        classes = _classes(self.path, name)
        if classes is None or classes == head.out_features:
            load_weights(model, self.path)
            return
        KaimingNormal().apply(model, generator)
        source = copy.deepcopy(model)
        wide = nn.Linear(head.in_features, classes, bias=head.bias is not None, device="meta").to_empty(device="cpu")
        source.set_submodule(name, wide)
        load_weights(source, self.path)
        own = model.state_dict()
        with torch.no_grad():
            for key, tensor in source.state_dict().items():
                if not key.startswith(f"{name}."):
                    own[key].copy_(tensor)


def _last_dense(model: nn.Module) -> tuple[str, nn.Linear]:
    dense = [(name, layer) for name, layer in model.named_modules() if isinstance(layer, nn.Linear)]
    if not dense:
        raise ModelError("A transfer needs a model that ends in a dense layer, got one without any: use file: instead.")
    return dense[-1]


def _classes(path: str, name: str) -> int | None:
    """How many outputs the file's last layer has; None leaves all complaints to `load_weights`."""
    try:
        with safe_open(path, framework="pt") as file:
            if f"{name}.weight" not in file.keys():  # noqa: SIM118 (no mapping)
                return None
            shape = file.get_slice(f"{name}.weight").get_shape()
    except FileNotFoundError:
        return None
    except (SafetensorError, OSError) as error:
        raise DataError(f"The weights file {path!r} can not be read as safetensors ({error}).") from error
    return int(shape[0]) if len(shape) == 2 and shape[0] < 1 << 16 else None
