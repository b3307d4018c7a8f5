"""The file layer: every file that fedglass reads or writes passes through here.

Reading opens regular files only. A link is refused, and so is a pipe or a device, which would otherwise block for ever.
Writing replaces a file in one step, so that a reader sees the old content or the new one, never a part of it. What is
written belongs to its owner: files get mode 0600, folders that are made get mode 0700.

A path that the user names may be a link: pass it through `follow_links` first. Inside folders that may come from
others (recordings, audit folders) no link is followed: `within` names such a folder, and every folder below it is
opened without following links. Without `within` this holds for the file itself.

Windows has neither O_NOFOLLOW nor these modes: there links are followed, and files have the modes of their folder.

JSON and TOML of others are refused with a ValueError where they are too large, too deep or hold no number. Python's own
parsers take up to thirty times the length of a text as memory, and some take time that grows with the square of it.
Here a text is refused before that happens.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import hashlib
import json
import os
import platform
import re
import secrets
import shutil
import stat
import sys
import time
import tomllib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import Any, NoReturn

if sys.platform != "win32":
    import fcntl

PRIVATE_FILE, PRIVATE_FOLDER = 0o600, 0o700
_NO_FOLLOW: int = getattr(os, "O_NOFOLLOW", 0)
_FOLDER: int = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0)
_PLAIN: int = _NO_FOLLOW | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)
_HAS_FOLDER_HANDLES = os.open in os.supports_dir_fd
_LEFTOVER = re.compile(r"\.fedglass-(?P<machine>[0-9a-f]{8})-(?P<process>\d+)-[0-9a-f]{16}\.tmp")
_ONE_DAY = 24 * 60 * 60.0
_swept: set[Path] = set()
"""Folders that this process has searched for leftovers."""


class RefusedFile(OSError):
    """The error for a path that is not opened: a link, a pipe, a device, or a file that is too large."""


def follow_links(path: Path) -> Path:
    """Return the place that a path leads to, for a path that the user has named.

    >>> follow_links(Path("/")).is_absolute()
    True
    """
    return Path(os.path.realpath(path))


@contextmanager
def open_file(path: Path, *, within: Path | None = None, limit: int | None = None) -> Iterator[BufferedReader]:
    """Open a regular file for reading; one with more than `limit` bytes is refused."""
    with _folder_of(path, within) as folder:
        descriptor = _open_plain(path, folder, os.O_RDONLY)
    with os.fdopen(descriptor, "rb") as file:
        size = os.fstat(descriptor).st_size
        if limit is not None and size > limit:
            raise RefusedFile(errno.EFBIG, f"it has {size} bytes, expected at most {limit}", str(path))
        yield file


def read_file(path: Path, limit: int, *, within: Path | None = None) -> bytes:
    """Return the content of a regular file that has at most `limit` bytes."""
    with open_file(path, within=within, limit=limit) as file:
        return file.read(os.fstat(file.fileno()).st_size)  # no more: another process may be appending to it


def check_file(path: Path) -> Path:
    """Return the path of a regular file, for libraries that open files themselves."""
    with open_file(path):
        return path


def write_atomic(path: Path, content: str | bytes, *, within: Path | None = None, durable: bool = True) -> None:
    """Replace the content of a file in one step; folders between `within` and the file are made.

    A file that is not `durable` may be lost in a power failure; waiting for the disk takes longer than writing it.
    """
    data = content.encode() if isinstance(content, str) else content
    with _folder_of(path, within, make=True) as folder:
        _remove_leftovers(path.parent, folder)
        temporary = _at(path.with_name(_temporary_name()), folder)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _PLAIN
        descriptor = os.open(temporary, flags, PRIVATE_FILE, dir_fd=folder)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
                if durable:
                    file.flush()
                    os.fsync(file.fileno())
            os.replace(temporary, _at(path, folder), src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary, dir_fd=folder)
            raise


@contextmanager
def locked(path: Path, *, wait: bool = True) -> Iterator[int]:
    """Open a file for reading and appending, made where needed, and hold its lock until the end.

    The system releases the lock when the process ends. Without `wait`, a lock that another process holds raises
    BlockingIOError. On Windows nothing is locked.
    """
    with _folder_of(path, None) as folder:
        descriptor = _open_plain(path, folder, os.O_RDWR | os.O_APPEND | os.O_CREAT)
    try:
        if sys.platform != "win32":
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        yield descriptor
    finally:
        os.close(descriptor)


def make_folder(path: Path) -> None:
    """Make a folder that only its owner can enter, with its parents; one that exists stays as it is."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.mkdir(mode=PRIVATE_FOLDER, exist_ok=True)


@contextmanager
def temporary_folder(parent: Path) -> Iterator[Path]:
    """Make a folder inside `parent` that is removed at the end."""
    _remove_leftovers(parent, None)
    path = parent / _temporary_name()
    path.mkdir(mode=PRIVATE_FOLDER)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


@contextmanager
def _folder_of(path: Path, within: Path | None, make: bool = False) -> Iterator[int | None]:
    """Open the folder that holds a file, following no link below `within`; None where the system cannot."""
    root = path.parent if within is None else within
    parts = path.parent.relative_to(root).parts if path.parent.is_relative_to(root) else ("..",)
    if ".." in parts or path.name in ("", ".."):
        raise RefusedFile(errno.EINVAL, f"it is not inside the folder {root}", str(path))
    if not _HAS_FOLDER_HANDLES:
        if make:
            path.parent.mkdir(parents=True, exist_ok=True)
        yield None
        return
    descriptor = os.open(root, _FOLDER)
    try:
        for depth, part in enumerate(parts, 1):
            if make:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(part, PRIVATE_FOLDER, dir_fd=descriptor)
            below = _open_folder(root.joinpath(*parts[:depth]), part, descriptor)
            os.close(descriptor)
            descriptor = below
        yield descriptor
    finally:
        os.close(descriptor)


def _open_folder(path: Path, name: str, above: int) -> int:
    try:
        return os.open(name, _FOLDER | _NO_FOLLOW, dir_fd=above)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EMLINK, errno.ENOTDIR) and path.is_symlink():
            raise _link(path) from None
        raise


def _open_plain(path: Path, folder: int | None, flags: int) -> int:
    try:
        descriptor = os.open(_at(path, folder), flags | _PLAIN, PRIVATE_FILE, dir_fd=folder)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EMLINK):
            raise _link(path) from None
        raise
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return descriptor
    os.close(descriptor)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    raise RefusedFile(errno.EINVAL, "it is a pipe or a device, not a regular file", str(path))


def _link(path: Path) -> RefusedFile:
    return RefusedFile(errno.ELOOP, f"{path.name} is a link, which is not followed here", str(path))


def _at(path: Path, folder: int | None) -> str:
    """Return a file as seen from its opened folder."""
    return str(path) if folder is None else path.name


# Temporary files are named after the machine and the process that write them, so that others can tell whether that
# process still runs.


def _temporary_name() -> str:
    return f".fedglass-{_machine()}-{os.getpid()}-{secrets.token_hex(8)}.tmp"


@functools.cache
def _machine() -> str:
    """Return a name for the machine, or the container, inside which process numbers are unique."""
    try:
        processes = os.readlink("/proc/self/ns/pid")
    except OSError:
        processes = ""
    return hashlib.sha256(f"{platform.node()} {processes}".encode()).hexdigest()[:8]


def _remove_leftovers(path: Path, folder: int | None) -> None:
    """Remove temporary files of processes that were killed; a folder is searched once by each process."""
    place = path.absolute()
    if place in _swept:
        return
    _swept.add(place)
    for name in os.listdir(path if folder is None else folder):
        parts = _LEFTOVER.fullmatch(name)
        if parts and (_is_gone(parts["machine"], int(parts["process"])) or _is_old(path / name)):
            _remove(path / name)


def _is_gone(machine: str, process: int) -> bool:
    """Check that the process has ended; one of another machine may be running."""
    if machine != _machine() or sys.platform == "win32":
        return False
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):
        return False
    return False


def _is_old(path: Path) -> bool:
    try:
        return time.time() - path.lstat().st_mtime > _ONE_DAY
    except OSError:
        return False


def _remove(path: Path) -> None:
    """Remove a file or a folder as far as that is allowed; what a link leads to stays."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
        return
    with contextlib.suppress(OSError):
        path.unlink()


MOST_VALUES = 2**25
"""Numbers and texts in a JSON text: a gibibyte in memory."""
MOST_CONTAINERS = 2**22
"""Lists, tables and keys in it: as much again."""
MOST_KEY_PARTS = 20
"""Parts of a dotted TOML key; the time that tomllib takes grows with their square."""
WIDEST = 2**63
"""TOML's own range of integers. Python refuses to print those with more than 4,300 digits, also in a message."""
_STRINGS = re.compile(
    r'''"""(?:[^"\\]++|\\.|"{1,2}(?!"))*+(?:"{3,5}|.*)'''
    r"""|'{3}(?:[^']++|'{1,2}(?!'))*+(?:'{3,5}|.*)"""
    r"""|"(?:[^"\\\n]++|\\[^\n])*+(?:"|.*)"""
    r"""|'[^'\n]*+(?:'|.*)|\#[^\n]*+""",
    re.DOTALL,
)
"""Strings and comments of TOML; one that does not end reaches to the end of the text, as no parser goes on there."""
_KEY = re.compile(r"[^=,\n\[\]{}]++")
"""What may be a dotted key, once strings and comments are out."""


def parse_json(text: bytes) -> Any:
    """Return the content of a JSON text; every text that cannot be read is a ValueError.

    >>> parse_json(b'{"a": [1, 2.5]}')
    {'a': [1, 2.5]}
    >>> parse_json(b"[NaN]")
    Traceback (most recent call last):
    ValueError: NaN is not a number in JSON
    """
    check_json_size(*json_size(text))
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except RecursionError:
        raise ValueError("it is nested too deep") from None


def json_size(text: bytes) -> tuple[int, int]:
    """Return how many commas a JSON text has, and how many signs of lists, tables and keys: at least as many as parsed.

    >>> json_size(b'{"a": [1, 2.5]}')
    (1, 3)
    """
    return text.count(b","), sum(map(text.count, (b"[", b"{", b":")))


def check_json_size(values: int, containers: int) -> None:
    """Refuse what would take more than some gibibytes of memory."""
    for number, most, noun in (
        (values, MOST_VALUES, "values"),
        (containers, MOST_CONTAINERS, "lists, tables and keys"),
    ):
        if number > most:
            raise ValueError(f"it has more than {most:,} {noun}")


def _refuse_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a number in JSON")


def parse_toml(text: str) -> dict[str, Any]:
    """Return the content of a TOML text; every text that cannot be read is a ValueError.

    >>> parse_toml("a.b = 1")
    {'a': {'b': 1}}
    >>> parse_toml("a = 0x" + 5000 * "f")
    Traceback (most recent call last):
    ValueError: it holds an integer of more than 64 bits
    """
    if any(key[0].count(".") >= MOST_KEY_PARTS for key in _KEY.finditer(_STRINGS.sub("", text))):
        raise ValueError(f"it has a key of more than {MOST_KEY_PARTS} parts")
    try:
        content = tomllib.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deep") from None
    level: list[Any] = [content]
    while level:
        if any(type(value) is int and not -WIDEST <= value < WIDEST for value in level):
            raise ValueError("it holds an integer of more than 64 bits")
        level = [entry for value in level for entry in _entries(value)]
    return content


def _entries(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()
