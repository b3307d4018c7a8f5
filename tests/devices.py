"""A pretended device for machines without a GPU: tensors carry its label and are computed on the CPU.

It is as strict as the strictest real one: it has no double precision, and an operation on tensors of two devices
raises. As on real devices, tensors without dimensions and indices may stay on the CPU.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

PRETENDED = torch.device("mps:0")
ABSENT = (torch.float64, torch.complex128)
COPIED_INTO = torch.ops.aten.copy_.default
COPIES = (torch.ops.aten._to_copy.default, COPIED_INTO)
INDEXED = (torch.ops.aten.index.Tensor, torch.ops.aten.index_put.default, torch.ops.aten.index_put_.default)
READS = (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.equal.default)


class LabelledTensor(Tensor):
    """A tensor of the pretended device, with its entries on the CPU. To C++ it is one of the meta device."""

    entries: Tensor

    @staticmethod
    def __new__(cls, entries: Tensor) -> LabelledTensor:
        if entries.dtype in ABSENT:
            raise TypeError(f"{PRETENDED} has no {entries.dtype}: compute this on the CPU")
        made: LabelledTensor = Tensor._make_wrapper_subclass(
            cls,
            entries.shape,
            strides=entries.stride(),
            storage_offset=entries.storage_offset(),
            dtype=entries.dtype,
            device="meta",
        )
        made.entries = entries
        return made

    @property
    def device(self) -> torch.device:  # type: ignore[override]  # as a property of a subclass hides C++'s
        return PRETENDED

    @property
    def is_meta(self) -> bool:  # type: ignore[override]
        return False

    def __repr__(self) -> str:  # type: ignore[override]
        return f"LabelledTensor({self.entries!r})"

    def numpy(self, *, force: bool = False) -> Any:
        raise TypeError(f"a tensor of {PRETENDED} has no NumPy array: copy it to the CPU first")

    def tolist(self) -> Any:
        return self.entries.tolist()

    @classmethod
    def __torch_dispatch__(
        cls, func: Any, types: Iterable[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        return computed(func, args, kwargs or {})


class Constants(TorchFunctionMode):
    """Moves what `torch.tensor` makes to the pretended device, of which its C++ knows nothing."""

    def __torch_function__(
        self, func: Any, types: Iterable[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        target = None if kwargs is None else kwargs.get("device")
        if func is Tensor.new_tensor and isinstance(args[0], LabelledTensor):
            return torch.tensor(*args[1:], dtype=args[0].dtype).to(PRETENDED)
        if func not in (torch.tensor, torch.as_tensor) or target is None or torch.device(target) != PRETENDED:
            return func(*args, **(kwargs or {}))
        return func(*args, **{**(kwargs or {}), "device": None}).to(PRETENDED)


class Operations(TorchDispatchMode):
    """Computes every operation on the CPU, and labels its result."""

    def __torch_dispatch__(
        self, func: Any, types: Iterable[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        return computed(func, args, kwargs or {})


@contextmanager
def pretended_device() -> Iterator[torch.device]:
    """Make `PRETENDED` a device that exists inside the context."""
    with warnings.catch_warnings(), Constants(), Operations():
        warnings.filterwarnings("ignore", "at::frobenius_norm")  # which torch takes for devices of few users
        yield PRETENDED


def computed(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Compute an operation on the CPU; label its result where it belongs to the pretended device."""
    values = [*args, *kwargs.values()]
    labelled = [leaf for value in values for leaf in leaves(value) if isinstance(leaf, LabelledTensor)]
    pretended = isinstance(args[0], LabelledTensor) if func == COPIED_INTO else bool(labelled)
    if (target := kwargs.get("device")) is not None:
        pretended = torch.device(target).type in (PRETENDED.type, "meta")  # C++ knows labelled tensors as meta ones
        kwargs = {**kwargs, "device": torch.device("cpu")}
    if labelled and func not in COPIES:
        check_one_device(func, values)
    result = func(*map(entries_of, args), **{name: entries_of(value) for name, value in kwargs.items()})
    if func in READS or not pretended:
        return result
    by_entries = {id(t.entries): t for t in labelled}  # what is written in place stays the same tensor
    return mapped(lambda t: by_entries[id(t)] if id(t) in by_entries else LabelledTensor(t), Tensor, result)


def leaves(value: Any) -> Sequence[Any]:
    """Return the tensors of a list, which is how an operation takes several, or the value alone."""
    return value if isinstance(value, list | tuple) else (value,)


def mapped(change: Callable[[Any], Any], kind: type, value: Any) -> Any:
    """Apply a function to a value of that kind, or to those in a list."""
    if isinstance(value, kind):
        return change(value)
    return type(value)(mapped(change, kind, one) for one in value) if isinstance(value, list | tuple) else value


def entries_of(value: Any) -> Any:
    return mapped(lambda tensor: tensor.entries, LabelledTensor, value)


def check_one_device(func: Any, values: Sequence[Any]) -> None:
    """Raise where the operation mixes devices."""
    for place, value in enumerate(values):
        if func in INDEXED and place == 1:
            continue
        for leaf in leaves(value):
            if isinstance(leaf, Tensor) and not isinstance(leaf, LabelledTensor) and leaf.dim():
                raise RuntimeError(f"{func} mixes {PRETENDED} with a tensor of {leaf.device}, {tuple(leaf.shape)}")
