"""What this process is told and may use: environment variables and cores."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager


@contextmanager
def environment(told: Mapping[str, str]) -> Iterator[None]:
    """Inside, this process and those that it starts have these variables; afterwards, what they were before.

    >>> with environment({"FEDGLASS_MOOD": "calm"}):
    ...     os.environ["FEDGLASS_MOOD"]
    'calm'
    >>> "FEDGLASS_MOOD" in os.environ
    False
    """
    before = {name: os.environ.get(name) for name in told}
    os.environ.update(told)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
