"""Tensors that a plan names by file: safetensors, of which names and shapes are checked before anything is loaded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from fedglass.core.errors import DataError, UpdateError
from fedglass.core.params import Params
from fedglass.core.statistics import COUNTER
from fedglass.models.fixed import lost


def tensors_of(
    field: str, path: Path, like: Params, optional: set[str] | frozenset[str] = frozenset()
) -> dict[str, Tensor]:
    """The named tensors of a file; names and shapes are compared before anything is loaded."""
    shapes = shapes_of(field, path)
    _check_names(field, path, shapes, like, optional)
    with _readable(field, path), safe_open(str(path), framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in like if name in shapes}
    return {name: _sound(field, path, name, tensor) for name, tensor in tensors.items()}


def check_not_lost(field: str, path: Path, update: Params, before: Path | None = None) -> None:
    """Refuse what moved in the file's own precision alone: read in single it would count as not trained."""
    still = [name for name, tensor in update.items() if not bool(tensor.any())]
    with _readable(field, path), safe_open(str(path), framework="pt") as file:
        for name in still:
            own = file.get_tensor(name)
            if bool(own.any()) if before is None else lost(own, torch.float32, _raw(field, before, name)):
                raise UpdateError(
                    f"{field}: {path}: {name!r} moved by less than a weight in single precision can hold: give the "
                    "difference as recording.update, or the weights as the model had them."
                )


def _raw(field: str, path: Path, name: str) -> Tensor:
    with _readable(field, path), safe_open(str(path), framework="pt") as file:
        tensor: Tensor = file.get_tensor(name)
        return tensor


def shapes_of(field: str, path: Path) -> dict[str, tuple[int, ...]]:
    """The names in a file and their shapes."""
    if not path.is_file():
        raise DataError(f"{field}: no such file: {path}.")
    with _readable(field, path), safe_open(str(path), framework="pt") as file:
        return {name: tuple(file.get_slice(name).get_shape()) for name in sorted(file.keys())}


@contextmanager
def _readable(field: str, path: Path) -> Iterator[None]:
    try:
        yield
    except (SafetensorError, OSError) as error:
        raise DataError(
            f"{field}: {path} can not be read as safetensors ({error}): it is truncated, corrupt or of another "
            "format. Save it again with safetensors.torch.save_file."
        ) from error


def _check_names(
    field: str, path: Path, shapes: Mapping[str, tuple[int, ...]], like: Params, optional: set[str] | frozenset[str]
) -> None:
    missing = [name for name in like if name not in shapes and name not in optional and not name.endswith(COUNTER)]
    extra = [name for name in shapes if name not in like]
    if missing or extra:
        lists = {"lacks": missing, "has the unknown": extra}
        said = [f"{verb} {names[0]!r} ({len(names)} in all)" for verb, names in lists.items() if names]
        raise UpdateError(
            f"{field}: {path} does not fit the model: it {' and '.join(said)}. Expected its {len(like)} tensor "
            "names: check that recording.model is the architecture that was trained."
        )
    for name, shape in shapes.items():
        if shape != tuple(like[name].shape):
            raise UpdateError(
                f"{field}: {path} does not fit the model: {name!r} has shape {shape}, expected "
                f"{tuple(like[name].shape)}: check recording.model, recording.classes and the images' shape."
            )


def _sound(field: str, path: Path, name: str, tensor: Tensor) -> Tensor:
    if name.endswith(COUNTER):
        return tensor
    if not tensor.is_floating_point():
        raise UpdateError(f"{field}: {path}: {name!r} must hold floats, got {tensor.dtype}.")
    single = tensor.float()
    if not torch.isfinite(single).all():
        raise UpdateError(
            f"{field}: {path}: {name!r} holds NaN or infinity: the client's training diverged or the file is "
            "damaged. Lower the client's learning rate or record it again."
        )
    return single
