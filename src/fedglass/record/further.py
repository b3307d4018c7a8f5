"""What a reply holds beside its model and some figures: control variates, states of optimisers, whatever a client adds.

Nothing of it is kept but its extent: no attack reads it, and an audit must know that it left.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedglass.bundle.facts import FIGURES, LETTERS


def extents(values: Mapping[Any, Any]) -> dict[str, Any]:
    """By name, the extent of all that is more than a figure or a few words."""
    found = {str(name): extent(value) for name, value in values.items()}
    return {name: size for name, size in found.items() if size is not None}


def extent(value: Any) -> Any:
    """The shape of an array, the length of bytes, text or a list; None of what is a figure or a few words.

    >>> extent(0.5), extent("epoch 3"), extent([1.0] * 10), extent({"control": [1.0] * 100}), extent(b"1234")
    (None, None, None, {'control': [100]}, [4])
    """
    shape = getattr(value, "shape", None)
    if shape is not None:
        return [int(side) for side in shape] if len(shape) else None
    if isinstance(value, bytes | bytearray | memoryview):
        return [len(value)]
    if isinstance(value, str):
        return [len(value)] if len(value) >= LETTERS else None
    if isinstance(value, Mapping):
        inner = extents(value)
        return inner or ([len(value)] if len(value) >= FIGURES else None)
    if isinstance(value, list | tuple | set | frozenset):
        held = [extent(each) for each in value]
        return [len(value)] if len(value) >= FIGURES or any(size is not None for size in held) else None
    return None if value is None or isinstance(value, bool | int | float) else type(value).__name__
