"""No file of others gives a traceback, a hang, a flood of memory, a file elsewhere, or a run of its code.

Every reader gets mutations of sound files. `make fuzz` asks for many more: FEDGLASS_FUZZ is the number for each fast
reader.
"""

from __future__ import annotations

import os
import resource
import shutil
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from fedglass.core.errors import FedglassError

from .mutations import mutate
from .readers import READERS, sound

COUNT = int(os.environ.get("FEDGLASS_FUZZ", "200"))
SECONDS, MOST_MEMORY = 20, 4 * 2**30
LONGEST = 2500
"""Characters of a refusal."""
STARTS = ("os.system", "os.exec", "os.posix_spawn", "os.spawn", "subprocess.Popen", "pickle.find_class")
CHANGES = ("os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.link", "os.symlink", "os.truncate", "os.chmod")
_watched: list[tuple[Path, list[str]]] = []


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if not _watched:
        return
    folder, findings = _watched[-1]
    if event in STARTS:
        findings.append(f"{event}{arguments!r:.200}")
    elif event in CHANGES or (event == "open" and _writes(arguments)):
        path = arguments[0]
        # A relative name belongs to a folder that was opened before, and checked then.
        if isinstance(path, str | bytes) and os.path.isabs(os.fsdecode(path)):
            place = Path(os.path.realpath(os.fsdecode(path)))
            if folder not in (place, *place.parents):
                findings.append(f"{event}{arguments!r:.200}")


def _writes(arguments: tuple[Any, ...]) -> bool:
    flags = arguments[2]
    return isinstance(flags, int) and bool(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))


sys.addaudithook(_audit)


@contextmanager
def watched(folder: Path) -> Iterator[list[str]]:
    """Collect what is started or written outside of the folder, and end what takes too long."""

    def stop(*_: object) -> None:
        raise TimeoutError(f"no answer within {SECONDS} seconds")

    findings: list[str] = []
    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(SECONDS)
    _watched.append((folder.resolve(), findings))
    try:
        yield findings
    finally:
        _watched.pop()
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.skipif(not hasattr(signal, "SIGALRM"), reason="there is no such signal here")
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("name", READERS)
def test_a_mutated_file_is_read_or_refused_in_a_sentence(name: str, tmp_path: Path) -> None:
    outcomes = {"read": 0, "refused": 0}

    @settings(
        max_examples=round(COUNT * READERS[name].inputs),
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(seed=st.integers(0, 2**48))
    def check(seed: int) -> None:
        folder = tmp_path / "outer" / "input"
        shutil.copytree(sound(name), folder)
        try:
            mutate(folder, Random(seed))
            with watched(folder) as findings:
                try:
                    READERS[name].read(folder)
                    outcomes["read"] += 1
                except FedglassError as error:
                    outcomes["refused"] += 1
                    assert "\n" not in str(error), str(error)[:LONGEST]
                    assert len(str(error)) <= LONGEST, str(error)[:LONGEST]
            assert not findings
            assert sorted(os.listdir(tmp_path)) == ["outer"]
            assert os.listdir(tmp_path / "outer") == ["input"]
            assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 < MOST_MEMORY
        finally:
            shutil.rmtree(tmp_path / "outer")

    check()
    print(f"{name}: {outcomes}")  # noqa: T201 # shown with -s
    assert outcomes["refused"] > 0
