"""Opens a bundle: all files are there and are those that were recorded, and each round starts where the last ended."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from torch import Tensor

from fedglass.bundle.manifest import MANIFEST, RoundFacts
from fedglass.bundle.reader import Bundle, files_of, read_index, tensors_in
from fedglass.core.errors import DataError


def read_bundle(folder: str | Path) -> Bundle:
    """The bundle in a folder, every file of it checked."""
    place = Path(folder)
    if not place.is_dir():
        raise DataError(f"{place} is no folder, expected that of a bundle: name the folder that was recorded.")
    _check_recorded(place)
    manifest, rounds = read_index(place)
    bundle = Bundle(place, manifest, dict(sorted(rounds.items())))
    for past in bundle.rounds.values():
        _check_round(bundle, past)
    for index in bundle.rounds:
        _check_continues(bundle, index)
    return bundle


def _check_recorded(place: Path) -> None:
    """Refuse a folder that nobody recorded to; the one above it, or beside it, is named easily in its place."""
    try:
        names = os.listdir(place)
    except OSError:
        return  # said of the file that can not be opened
    if MANIFEST in names or any(name.startswith("round-") for name in names):
        return
    near = sorted(name for name in names if os.path.isfile(place / name / MANIFEST))
    such = f", such as {place / near[0]}" if near else ""
    raise DataError(f"{place} holds no bundle: name the folder that was recorded{such}.")


def _check_round(bundle: Bundle, past: RoundFacts) -> None:
    """Every file is read once; what has the same name has the same shape in all of them."""
    shapes: dict[str, tuple[int, ...]] = {}
    for held in files_of(past):
        tensors_in(bundle.folder, held)
        for array in held.arrays:
            shape = tuple(array.shape)
            if shapes.setdefault(array.name, shape) != shape:
                raise DataError(
                    f"{bundle.folder / held.file}: {array.name[:100]!r} has shape {shape}, expected "
                    f"{shapes[array.name]} as in the rest of round {past.index}: models were mixed; record anew."
                )


def _check_continues(bundle: Bundle, index: int) -> None:
    """out(t) = in(t + 1), where both were recorded."""
    past, following = bundle.rounds[index], bundle.rounds.get(index + 1)
    if past.aggregated is None or following is None or following.sent is None:
        return
    after, found = bundle.arrays(past.aggregated), bundle.arrays(following.sent)
    if past.aggregated.form == "update":
        if past.sent is None:
            return
        after = _added(bundle.arrays(past.sent), after)
    odd = [name for name in {**after, **found} if name not in after or name not in found]
    odd += [name for name in after if name in found and not same(after[name], found[name])]
    if odd:
        raise DataError(
            f"{bundle.folder}: round {index + 1} does not start where round {index} ended, at {odd[0][:100]!r}: rounds "
            "were mixed, or before and after swapped; record anew."
        )


def _added(before: dict[str, Tensor], step: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: b + step[name] if name in step else b for name, b in before.items()}


def same(one: Tensor, other: Tensor) -> bool:
    """Equal but for the rounding of a sum, and of the types in which both were sent."""
    if one.shape != other.shape:
        return False
    coarse = max((_grain(t) for t in (one, other)), default=0.0)
    a, b = one.double().nan_to_num(nan=0.123), other.double().nan_to_num(nan=0.123)
    size = torch.maximum(a.abs(), b.abs())
    return bool(((a - b).abs() <= 4 * coarse * size).all())


def _grain(tensor: Tensor) -> float:
    return torch.finfo(tensor.dtype).eps if tensor.is_floating_point() else 0.0
