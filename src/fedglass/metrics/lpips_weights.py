"""Finding and reading LPIPS weights. Nothing is ever downloaded."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from fedglass.core.errors import DataError
from fedglass.metrics.lpips_trunks import TRUNKS, Trunk

VARIABLE = "FEDGLASS_LPIPS"
PLACE = "~/.cache/fedglass/lpips_alex_v0.1.safetensors"
HOW_TO_PROVIDE = (
    f"LPIPS needs network weights, which fedglass neither ships nor downloads: put them at {PLACE} or name "
    f"the file in the environment variable {VARIABLE}. Expected is a safetensors file with torchvision's "
    "AlexNet features (features.0.weight, features.0.bias, ... features.10.bias) and the linear layers of "
    "LPIPS v0.1 (lin0.weight ... lin4.weight, each (1, c, 1, 1)); VGG16 with its linear layers works as well."
)
MOST_BYTES = 256 * 2**20  # VGG16 in float32 takes 59 MB


def find_weights() -> Path | None:
    """The weights file named in FEDGLASS_LPIPS, or the one in the user's cache, or None."""
    named = os.environ.get(VARIABLE)
    if named:
        path = Path(os.path.expanduser(named))
        if not path.is_file():
            raise DataError(f"Expected the environment variable {VARIABLE} to name a file, got {named!r}.")
        return path
    path = Path(os.path.expanduser(PLACE))
    return path if path.is_file() else None


def read_weights(path: Path) -> tuple[Trunk, dict[str, Tensor]]:
    """The feature stack that a safetensors file belongs to, and its tensors as float32."""
    if not path.is_file():
        raise DataError(f"Expected LPIPS weights in {str(path)!r}, got no such file. {HOW_TO_PROVIDE}")
    if path.stat().st_size > MOST_BYTES:
        raise DataError(
            f"Expected LPIPS weights of at most {MOST_BYTES} bytes in {str(path)!r}, got "
            f"{path.stat().st_size}: this is another file."
        )
    try:
        with safe_open(str(path), framework="pt") as file:
            shapes = {name: tuple(file.get_slice(name).get_shape()) for name in list(file.keys())}
            trunk = _trunk_of(path, shapes)
            tensors = {name: file.get_tensor(name) for name in shapes}
    except (SafetensorError, OSError) as error:
        raise DataError(
            f"Expected a safetensors file of LPIPS weights in {str(path)!r}, got a damaged or unreadable one "
            f"({error}). Copy it again."
        ) from error
    return trunk, {name: _sound(path, name, t) for name, t in tensors.items()}


def _trunk_of(path: Path, shapes: dict[str, tuple[int, ...]]) -> Trunk:
    for trunk in TRUNKS:
        if shapes.keys() == trunk.shapes().keys():
            _check_shapes(path, shapes, trunk)
            return trunk
    nearest = max(TRUNKS, key=lambda trunk: len(trunk.shapes().keys() & shapes.keys()))
    lacking = sorted(nearest.shapes().keys() - shapes.keys())
    extra = sorted(shapes.keys() - nearest.shapes().keys())
    raise DataError(
        f"Expected the {len(nearest.shapes())} tensors of LPIPS ({nearest.name}) in {str(path)!r}, got "
        f"{len(lacking)} missing (first: {lacking[:1]}) and {len(extra)} unknown (first: {extra[:1]}). "
        f"{HOW_TO_PROVIDE}"
    )


def _check_shapes(path: Path, shapes: dict[str, tuple[int, ...]], trunk: Trunk) -> None:
    for name, expected in trunk.shapes().items():
        if shapes[name] != expected:
            raise DataError(
                f"Expected {name!r} of LPIPS ({trunk.name}) with shape {expected} in {str(path)!r}, got "
                f"{shapes[name]}: the weights belong to another network."
            )


def _sound(path: Path, name: str, tensor: Tensor) -> Tensor:
    if not tensor.is_floating_point() or not torch.isfinite(tensor.float()).all():
        raise DataError(
            f"Expected finite floats for {name!r} in {str(path)!r}, got "
            f"{'NaN or infinity' if tensor.is_floating_point() else tensor.dtype}: copy the file again."
        )
    return tensor.float()
