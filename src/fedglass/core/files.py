"""Files that are whole or not there."""

from __future__ import annotations

import os
from pathlib import Path

from fedglass.core.errors import UsageError
from fedglass.core.foreign import is_importable
from fedglass.core.registry import Entry, find, names, takes


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


# Names of parts that read a file: `npz:faces.npz`, `file:w.safetensors`, `package.module:reader:faces.db`.
#
# A part reads a file when its factory takes a `path`. The names of such parts win over modules of the same name.


def reads_path(entry: Entry) -> bool:
    """Whether a path belongs to the name of the part."""
    return callable(entry.value) and takes(entry.value, "path")


def names_path(entry: Entry) -> str:
    """The name as it is listed.

    >>> names_path(find("initialisations", "file")), names_path(find("initialisations", "lecun"))
    ('file:PATH', 'lecun')
    """
    return f"{entry.name}:PATH" if reads_path(entry) else entry.name


def split_path(kind: str, text: str) -> tuple[str, str | None]:
    """The name of a part and the path behind it, which is None where the text names no part that reads one.

    >>> split_path("initialisations", "file:a/b:c"), split_path("initialisations", "lecun")
    (('file', 'a/b:c'), ('lecun', None))
    """
    first, colon, rest = text.partition(":")
    if first in names(kind):
        reads = reads_path(find(kind, first))
        return (first, rest) if reads else (text, None)
    own, _, path = rest.partition(":")
    if colon and is_importable(first) and _is_reader(kind, f"{first}:{own}"):
        return f"{first}:{own}", path
    return text, None


def _is_reader(kind: str, name: str) -> bool:
    try:
        return reads_path(find(kind, name))
    except UsageError:  # said in full by whoever asks for the part itself
        return False


def located_at(kind: str, text: str, folder: Path) -> str:
    """The same name with its path, where it has one, taken from that folder."""
    name, path = split_path(kind, text)
    return f"{name}:{folder / Path(path).expanduser()}" if path else text
