"""Weights of a network that was trained for other classes, or for larger pictures."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from safetensors import SafetensorError, safe_open
from torch import Generator, nn

from fedglass.core.errors import ModelError
from fedglass.core.registry import register
from fedglass.models.init import KaimingNormal
from fedglass.models.weights import load_weights, unreadable

MOST_CLASSES = 1 << 16
LARGEST_KERNEL = 31


@register("initialisations", "transfer", summary="the same, but for a first or last layer of another size")
@dataclass(frozen=True)
class Transfer:
    """All weights and running statistics from a safetensors file, but for a first or last layer of another size.

    The last one is that of other classes. The first one is a convolution with another kernel: networks made for
    224 x 224 pixels begin with 7 x 7, those for 32 x 32 with 3 x 3. Either is drawn anew [He et al., 2015]; all
    else must be of the same architecture.
    """

    path: str
    digest: str = ""
    """The file's SHA-256, where that is a part of an experiment's identity."""

    def apply(self, model: nn.Module, generator: Generator) -> None:
        fitting = _as_in_file(model, self.path)
        if not fitting:
            load_weights(model, self.path)
            return
        source = copy.deepcopy(model)
        for name, layer in fitting.items():
            source.set_submodule(name, layer)
        load_weights(source, self.path)
        KaimingNormal().apply(model, generator)
        own = model.state_dict()
        with torch.no_grad():
            for key, tensor in source.state_dict().items():
                if key.rpartition(".")[0] not in fitting:
                    own[key].copy_(tensor)


def _as_in_file(model: nn.Module, path: str) -> dict[str, nn.Module]:
    """The layers that the file has in another size, in that size; all other complaints are left to `load_weights`."""
    (last, head), first = _last_dense(model), _first_convolution(model)
    sizes = _sizes(path, [last] if first is None else [last, first[0]])
    found: dict[str, nn.Module] = {}
    if _other_classes(size := sizes.get(last, ()), head):
        found[last] = nn.Linear(head.in_features, size[0], head.bias is not None, device="meta").to_empty(device="cpu")
    if first is not None and _other_kernel(size := sizes.get(first[0], ()), first[1]):
        found[first[0]] = _with_kernel(first[1], (size[2], size[3]))
    return found


def _other_classes(size: Sequence[int], head: nn.Linear) -> bool:
    return len(size) == 2 and head.out_features != size[0] and 1 <= size[0] < MOST_CLASSES


def _other_kernel(size: Sequence[int], layer: nn.Conv2d) -> bool:
    if len(size) != 4 or tuple(size[:2]) != tuple(layer.weight.shape[:2]):
        return False
    return tuple(size[2:]) != layer.kernel_size and 1 <= min(size[2:]) <= max(size[2:]) <= LARGEST_KERNEL


def _with_kernel(layer: nn.Conv2d, kernel: tuple[int, int]) -> nn.Module:
    made = nn.Conv2d(
        layer.in_channels, layer.out_channels, kernel, groups=layer.groups, bias=layer.bias is not None, device="meta"
    )
    return made.to_empty(device="cpu")


def _last_dense(model: nn.Module) -> tuple[str, nn.Linear]:
    dense = [(name, layer) for name, layer in model.named_modules() if isinstance(layer, nn.Linear)]
    if not dense:
        raise ModelError("A transfer needs a model that ends in a dense layer, got one without any: use file: instead.")
    return dense[-1]


def _first_convolution(model: nn.Module) -> tuple[str, nn.Conv2d] | None:
    return next(((name, layer) for name, layer in model.named_modules() if isinstance(layer, nn.Conv2d)), None)


def _sizes(path: str, layers: Sequence[str]) -> Mapping[str, tuple[int, ...]]:
    """The shapes of these layers' weights, as far as the file has them."""
    try:
        with safe_open(path, framework="pt") as file:
            known = [name for name in layers if f"{name}.weight" in file.keys()]  # noqa: SIM118 (no mapping)
            return {name: tuple(file.get_slice(f"{name}.weight").get_shape()) for name in known}
    except FileNotFoundError:
        return {}
    except (SafetensorError, OSError) as error:
        raise unreadable(path, error) from error
