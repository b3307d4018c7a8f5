"""Files that are whole or not there."""

from __future__ import annotations

import os
from pathlib import Path


def write_atomic(path: Path, content: str | bytes, private: bool = False) -> None:
    """Replace a file's content so that a reader sees the old or the new one, never a part.

    `private` files can be read by their owner alone.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb", opener=_owner_only if private else None) as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _owner_only(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
