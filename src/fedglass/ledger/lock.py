"""One audit at a time in a directory."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from fedglass.core.errors import UsageError
from fedglass.ledger.records import unwritable

if sys.platform != "win32":
    import fcntl

LOCK = ".lock"


@contextlib.contextmanager
def alone(directory: Path) -> Iterator[None]:
    """Make the directory and hold it, or say that another process does.

    The system lets go of the lock when its process ends, however that happens: the file itself means nothing.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        fd = os.open(directory / LOCK, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        raise unwritable(directory, error) from error
    try:
        _hold(fd, directory)
        yield
    finally:
        os.close(fd)


def _hold(fd: int, directory: Path) -> None:
    if sys.platform == "win32":
        return
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise UsageError(
            f"Another command is running in the output directory {directory}: wait until it has ended, or choose "
            "another directory with -o."
        ) from error
