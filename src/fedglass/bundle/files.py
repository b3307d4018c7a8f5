"""Files of others: plain ones inside the folder alone, of the length that was promised, never through a link."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedglass.core.errors import DataError

CHUNK = 2**20


@contextmanager
def opened(path: Path) -> Iterator[int]:
    """A descriptor of a plain file; links, folders and pipes are refused, and nothing is waited for."""
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    try:
        fd = os.open(path, flags)
    except OSError as error:
        raise DataError(_why_not(path, error)) from error
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise DataError(f"{path} is no plain file: restore the bundle from where it was recorded.")
        yield fd
    except OSError as error:
        raise DataError(f"Cannot read {path}: {error.strerror}; copy the bundle again.") from error
    finally:
        os.close(fd)


def _why_not(path: Path, error: OSError) -> str:
    if error.errno == errno.ENOENT:
        return f"{path} is missing: the bundle is not whole; copy all of it, or record it again."
    if error.errno in (errno.EACCES, errno.EPERM):
        return f"Cannot read {path}: {error.strerror}; only the user who recorded it may, ask that one for a copy."
    if error.errno in (errno.ELOOP, errno.EMLINK):
        return f"{path} is a link, expected the file itself: copy the bundle with its files."
    return f"Cannot read {path}: {error.strerror}; name the folder of a bundle."


def contents(path: Path, *, most: int) -> bytes:
    """All bytes of a file that has no more than so many."""
    with opened(path) as fd:
        length = os.fstat(fd).st_size
        if length > most:
            raise DataError(f"{path} has {length} bytes, expected at most {most}: it is another file.")
        return b"".join(_chunks(fd, most))


def exact_contents(path: Path, length: int, sha256: str) -> bytes:
    """The bytes of a file whose length and digest are known."""
    with opened(path) as fd:
        _check_length(path, fd, length)
        data = b"".join(_chunks(fd, length))
    _check_digest(path, hashlib.sha256(data).hexdigest(), sha256)
    return data


def check_contents(path: Path, length: int, sha256: str) -> None:
    """The same check without keeping the bytes."""
    digest = hashlib.sha256()
    with opened(path) as fd:
        _check_length(path, fd, length)
        for chunk in _chunks(fd, length):
            digest.update(chunk)
    _check_digest(path, digest.hexdigest(), sha256)


def _check_length(path: Path, fd: int, length: int) -> None:
    found = os.fstat(fd).st_size
    if found != length:
        raise DataError(
            f"{path} has {found} bytes, expected {length}: it was cut short or exchanged; copy the bundle again."
        )


def _check_digest(path: Path, found: str, expected: str) -> None:
    if found != expected:
        raise DataError(
            f"{path} is not the file that was recorded (other SHA-256): it is damaged or was exchanged; copy the "
            "bundle again."
        )


def _chunks(fd: int, most: int) -> Iterator[bytes]:
    """Up to so many bytes and one more, lest a file that grows is read for ever."""
    left = most + 1
    while left > 0 and (chunk := os.read(fd, min(CHUNK, left))):
        left -= len(chunk)
        yield chunk
