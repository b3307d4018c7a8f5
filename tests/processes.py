"""What runs under a command, and waiting for what it does."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")


def lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def descendants(ancestor: int) -> list[int]:
    """The processes under a process, by the parents' ids in /proc."""
    parents: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
    found = [ancestor]
    for pid in found:  # grows while it is walked
        found += [child for child, parent in parents.items() if parent == pid]
    return found[1:]


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_for(look: Callable[[], T | None], patience: float = 120.0) -> T:
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline:
        if (found := look()) is not None:
            return found
        time.sleep(0.05)
    raise AssertionError(f"nothing happened within {patience} seconds")
