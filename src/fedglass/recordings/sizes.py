"""Sizes of what a client sends in addition to its model: metrics, control variates, states of optimisers.

Recorders store sizes only. No attack reads the content, but an audit must know that it left: it may be a picture.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

MANY_NUMBERS = 64
"""The number of numbers from which on extra content of a reply may be a picture, of eight by eight pixels."""
MANY_CHARACTERS = 200
"""The number of characters from which on it may be anything."""
LONGEST_TEXT = 2000
"""Characters that a bundle holds of a value which JSON cannot hold."""


def sizes_of_extras(values: Mapping[Any, Any]) -> dict[str, Any]:
    """Return the size of everything in a reply that is more than a figure or a few words, by name.

    Replies carry control variates, states of optimisers or anything that a client adds to its model. Only the size is
    recorded: no attack reads it, but an audit must know that it left.
    """
    sizes = {str(name): size_of_extra(value) for name, value in values.items()}
    return {name: size for name, size in sizes.items() if size is not None}


def size_of_extra(value: Any) -> Any:
    """Return the shape of an array, the length of bytes, text or a list; None for a figure or a few words.

    >>> sizes = map(size_of_extra, (0.5, "epoch 3", [1.0] * 10, {"control": [1.0] * 100}, b"1234"))
    >>> list(sizes)
    [None, None, None, {'control': [100]}, [4]]
    """
    shape = getattr(value, "shape", None)
    if shape is not None:
        return [int(side) for side in shape] if len(shape) else None
    if isinstance(value, bytes | bytearray | memoryview):
        return [len(value)]
    if isinstance(value, str):
        return [len(value)] if len(value) >= MANY_CHARACTERS else None
    if isinstance(value, Mapping):
        inner = sizes_of_extras(value)
        return inner or ([len(value)] if len(value) >= MANY_NUMBERS else None)
    if isinstance(value, list | tuple | set | frozenset):
        large = len(value) >= MANY_NUMBERS or any(size_of_extra(entry) is not None for entry in value)
        return [len(value)] if large else None
    return None if value is None or isinstance(value, bool | int | float) else type(value).__name__


def large_metrics(metrics: Mapping[str, Any], sizes: Any = None) -> list[str]:
    """Return the names of metrics that are more than a figure or a few words.

    Args:
        sizes: The sizes that a recorder stored, as a file has them; None in bundles of earlier versions.

    >>> large_metrics({"loss": 0.1, "picture": [0.5] * 64, "raw": b"12"})
    ['picture', 'raw']
    """
    if not (_are_sizes(sizes) and set(sizes) == set(metrics)):
        sizes = {name: metric_size(value) for name, value in metrics.items()}
    return [n for n, (count, length) in sizes.items() if count >= MANY_NUMBERS or length >= MANY_CHARACTERS]


def _are_sizes(value: Any) -> bool:
    """Check a fact of a file, which may hold anything."""
    return isinstance(value, dict) and all(
        isinstance(pair, list) and len(pair) == 2 and all(isinstance(number, int) for number in pair)
        for pair in value.values()
    )


def metric_size(value: Any) -> tuple[int, int]:
    """Return how many numbers and how many characters there are in a metric; bytes may hold any number of either."""
    if isinstance(value, Mapping | list | tuple | set | frozenset):
        sizes = [metric_size(entry) for entry in (value.values() if isinstance(value, Mapping) else value)]
        return sum(count for count, _ in sizes), sum(length for _, length in sizes)
    if isinstance(value, bytes | bytearray):
        return len(value), MANY_CHARACTERS
    if (count := array_entries(value)) is not None:
        return count, 0
    if value is None or isinstance(value, bool | int | float) or hasattr(value, "item"):
        return 1, 0
    text = str(value)[:LONGEST_TEXT]
    # Bundles of earlier versions have these words for arrays and bytes, and no sizes next to them.
    old = re.fullmatch(r"\((\d+) (bytes|numbers)\)", text)
    return (0, len(text)) if old is None else (int(old[1]), MANY_CHARACTERS * (old[2] == "bytes"))


def has_binary(value: Any) -> bool:
    """Check for bytes or arrays."""
    if isinstance(value, Mapping | list | tuple | set | frozenset):
        return any(has_binary(entry) for entry in (value.values() if isinstance(value, Mapping) else value))
    return isinstance(value, bytes | bytearray) or array_entries(value) is not None


def array_entries(value: Any) -> int | None:
    """Return the number of entries of an array or tensor; None of anything else, and of a scalar."""
    if hasattr(value, "item") and getattr(value, "ndim", 0) == 0:
        return None
    if hasattr(value, "numel"):
        return int(value.numel())
    size = getattr(value, "size", None)
    return size if isinstance(size, int) else None
