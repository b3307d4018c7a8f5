"""Weights from safetensors files, which hold arrays and cannot run code."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from torch import nn

from fedglass.core.errors import DataError, ModelError
from fedglass.core.tensors import COUNTER, open_tensors

Sizes = Mapping[str, tuple[int, ...]]

# torchvision's published file of DenseNet-121 was written when module names could hold dots.
_OLD_DENSE = re.compile(r"(denselayer\d+\.(?:norm|conv))\.([12]\.)")


def load_weights(model: nn.Module, path: str) -> None:
    """Fill the model's parameters and buffers from a file with the same names and shapes.

    Files with torchvision's names fit the networks that torchvision has; the counters of batches may be
    missing.
    """
    if not Path(path).is_file():
        raise DataError(f"The weights file {path!r} does not exist: give the path of a safetensors file.")
    try:
        with open_tensors(Path(path)) as file:
            name_in_file = {_OLD_DENSE.sub(r"\1\2", name): name for name in sorted(file.keys())}
            sizes = {name: tuple(file.get_slice(old).get_shape()) for name, old in name_in_file.items()}
            _check(model, sizes, path)
            tensors = {name: file.get_tensor(old) for name, old in name_in_file.items()}
    except (SafetensorError, OSError) as error:
        raise unreadable(path, error) from error
    state = model.state_dict()
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not torch.isfinite(tensor).all():
            raise ModelError(
                f"The weights file {path!r} holds NaN or infinity in {name!r}: its training diverged. "
                "Take another checkpoint."
            )
    with torch.no_grad():
        for name, tensor in tensors.items():
            state[name].copy_(tensor)


def unreadable(path: str, error: Exception) -> DataError:
    """Return the error for a file that is not safetensors; files of PyTorch, as torchvision's, must be converted."""
    if Path(path).suffix in (".pt", ".pth"):
        return DataError(
            f"The weights file {path!r} is one of PyTorch's, which may hold code: if you trust it, convert it once "
            "with safetensors.torch.save_file(torch.load(path, weights_only=True), 'weights.safetensors')."
        )
    return DataError(
        f"The weights file {path!r} cannot be read as safetensors ({error}): it is damaged or of another format. "
        "Save it again with safetensors.torch.save_file(model.state_dict(), path)."
    )


def _check(model: nn.Module, sizes: Sizes, path: str) -> None:
    expected = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    unique = {name for name, _ in model.named_parameters()} | {name for name, _ in model.named_buffers()}
    counters = {name for name in expected if name.endswith(COUNTER)}
    missing = [name for name in expected if name in unique - counters and name not in sizes]
    extra = [name for name in sizes if name not in expected]
    if missing or extra:
        problems = [f"lacks {missing[0]!r} ({len(missing)} in all)"] if missing else []
        problems += [f"has the unknown {extra[0]!r} ({len(extra)} in all)"] if extra else []
        raise ModelError(
            f"The weights file {path!r} belongs to another architecture: it {' and '.join(problems)}. "
            "Name the model that the file was saved from."
        )
    wrong = [name for name in sizes if sizes[name] != expected[name]]
    if wrong:
        raise _misfit(model, wrong, sizes, expected, path)


def _misfit(model: nn.Module, wrong: list[str], sizes: Sizes, expected: Sizes, path: str) -> ModelError:
    head = [name for name, layer in model.named_modules() if isinstance(layer, nn.Linear)][-1:]
    if (
        head
        and set(wrong) <= {f"{head[0]}.weight", f"{head[0]}.bias"}
        and sizes[wrong[0]][1:] == expected[wrong[0]][1:]
    ):
        return ModelError(
            f"The weights file {path!r} has a classifier of {sizes[wrong[0]][0]} classes, expected "
            f"{expected[wrong[0]][0]}: set the number of classes to that of the file, or replace its "
            f"{' and '.join(map(repr, wrong))}."
        )
    return ModelError(
        f"The weights file {path!r} belongs to another architecture: its {wrong[0]!r} has shape "
        f"{sizes[wrong[0]]}, expected {expected[wrong[0]]} ({len(wrong)} such in all). Name the model and the "
        "input shape that the file was saved from."
    )
