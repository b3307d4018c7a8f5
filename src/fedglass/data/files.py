"""Reading files that may be damaged or hostile: never more bytes than were promised."""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, cast

from fedglass.core.errors import DataError

MAX_BYTES = 1 << 30
"""No reader takes a file, or what a file unpacks to, beyond this."""

MAX_VALUES = 1 << 28
"""Pixel values in one dataset: 1 GiB as float32, more than all of CIFAR."""

_GZIP = b"\x1f\x8b"


@contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """The file, unpacked on the fly where it is gzip; whatever is wrong with it becomes a DataError."""
    try:
        with path.open("rb") as raw:
            packed = raw.read(2) == _GZIP
            raw.seek(0)
            # GzipFile has all that readers use of BinaryIO, but does not declare it.
            yield cast(BinaryIO, gzip.GzipFile(fileobj=raw)) if packed else raw
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{path}: the gzip data is truncated or corrupt ({error}): fetch the file again.") from None
    except OSError as error:
        raise DataError(f"{path}: can not be read ({error.strerror or error}).") from None


def contents(path: Path, limit: int = MAX_BYTES) -> bytes:
    """All bytes of a file (unpacked where it is gzip), refused beyond the limit."""
    with opened(path) as file:
        found = _up_to(file, limit + 1)
    if len(found) > limit:
        raise DataError(
            f"{path}: holds more than {limit} bytes, which is the most that is read: keep a part of it in a "
            "smaller file."
        )
    return found


def _up_to(file: BinaryIO, count: int) -> bytes:
    """At most `count` bytes, read in pieces: memory follows what is there, not what was announced."""
    pieces = []
    while count > 0 and (piece := file.read(min(count, 1 << 20))):
        pieces.append(piece)
        count -= len(piece)
    return b"".join(pieces)


def exactly(file: BinaryIO, count: int, path: Path) -> bytes:
    """The next `count` bytes, which the caller has checked against a limit."""
    found = _up_to(file, count)
    if len(found) != count:
        raise DataError(f"{path}: truncated, expected {count} more bytes, got {len(found)}: fetch it again.")
    return found


def check_values(path: Path, shape: tuple[int, ...]) -> None:
    """Refuse an array that is too large, from its announced shape alone.

    >>> check_values(Path("x.npz"), (10**6, 10**6))
    Traceback (most recent call last):
    fedglass.core.errors.DataError: x.npz: announces 1000000 x 1000000 values, at most 268435456 are read...
    """
    total = 1
    for side in shape:
        total *= side
    if total > MAX_VALUES:
        sides = " x ".join(map(str, shape))
        raise DataError(f"{path}: announces {sides} values, at most {MAX_VALUES} are read: keep a part of it.")


class Bounded(io.RawIOBase):
    """A stream that stops with an error, rather than go on, once it has given out `limit` bytes."""

    def __init__(self, file: BinaryIO, limit: int, path: Path) -> None:
        self._file, self._left, self._path = file, limit, path

    def read(self, size: int = -1) -> bytes:
        wanted = self._left + 1 if size < 0 else min(size, self._left + 1)
        found = self._file.read(wanted)
        self._left -= len(found)
        if self._left < 0:
            raise DataError(f"{self._path}: unpacks to more than is read at most; it is damaged or hostile.")
        return found
