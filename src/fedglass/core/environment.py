"""The environment variables of this process, and the cores that it may use."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager


@contextmanager
def environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set these variables for this process and those that it starts, until the context ends.

    >>> with environment({"FEDGLASS_MOOD": "calm"}):
    ...     os.environ["FEDGLASS_MOOD"]
    'calm'
    >>> "FEDGLASS_MOOD" in os.environ
    False
    """
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
