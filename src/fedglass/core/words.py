"""Lists in sentences."""

from __future__ import annotations

from collections.abc import Sequence


def some(names: Sequence[str], most: int = 3) -> str:
    """The first names, and how many more there are.

    >>> some(["a", "b"]), some(["a", "b", "c"], most=2)
    ('a, b', 'a, b and 1 more')
    """
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
