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
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600 if private else 0o666)
        with os.fdopen(fd, "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
