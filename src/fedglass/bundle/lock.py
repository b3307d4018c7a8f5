"""One writer at a time in a folder: others wait, in this process and in every other."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from fedglass.core.errors import UsageError

if sys.platform != "win32":
    import fcntl

LOCK = ".lock"


@contextlib.contextmanager
def waiting(folder: Path) -> Iterator[None]:
    """Hold the folder; the system lets go of it when the process ends, however that happens."""
    try:
        fd = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise UsageError(f"Cannot write to {folder}: {error.strerror}; choose another folder.") from error
    try:
        if sys.platform != "win32":
            fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)
