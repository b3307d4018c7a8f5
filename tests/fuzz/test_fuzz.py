"""No file of others gives a traceback, a hang, a flood of memory, a file elsewhere, or a run of its code.

Every reader gets mutations of sound files. `make fuzz` asks for many more: FEDGLASS_FUZZ is the number for each reader.
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

from fedglass.core.errors import DataError, FedglassError

from .mutations import mutate
from .readers import READERS, sound

COUNT = int(os.environ.get("FEDGLASS_FUZZ", "200"))
SECONDS, MOST_MEMORY = 20, 4 * 2**30
LONGEST = 2500
"""Characters of a refusal."""
STARTS = ("os.system", "os.exec", "os.posix_spawn", "os.spawn", "subprocess.Popen", "pickle.find_class")
CHANGES = ("os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.link", "os.symlink", "os.truncate", "os.chmod")
RUNS = ("exec", "compile", "import")
OWN_CODE = {"compile": ("ast", "typing"), "exec": ("typing", "importlib._bootstrap", "importlib._bootstrap_external")}
"""`ast` makes trees that do not run, such as numpy's headers; `typing` resolves the annotations of classes.

An import is judged by its own event.
"""
_watched: list[tuple[Path, list[str]]] = []


class Hang(BaseException):
    """What ends a reader that takes too long: no reader may take it for a fault of the file, as it would an OSError."""


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if not _watched:
        return
    folder, findings = _watched[-1]
    if event in STARTS or (event in RUNS and _runs(event, arguments)):
        findings.append(f"{event}{arguments!r:.200}")
    elif event in CHANGES or (event == "open" and _writes(arguments)):
        path = arguments[0]
        # A relative name belongs to a folder that was opened before, and checked then.
        if isinstance(path, str | bytes) and os.path.isabs(os.fsdecode(path)):
            place = Path(os.path.realpath(os.fsdecode(path)))
            if folder not in (place, *place.parents):
                findings.append(f"{event}{arguments!r:.200}")


def _runs(event: str, arguments: tuple[Any, ...]) -> bool:
    """Check that the event is not one of a library's own, by the module that asks for it."""
    if event == "import":  # parts of a loaded package come late, such as the codecs of rare encodings
        return arguments[0].partition(".")[0] not in sys.modules
    return sys._getframe(2).f_globals.get("__name__") not in OWN_CODE.get(event, ())


def _writes(arguments: tuple[Any, ...]) -> bool:
    flags = arguments[2]
    return isinstance(flags, int) and bool(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))


sys.addaudithook(_audit)


@contextmanager
def watched(folder: Path) -> Iterator[list[str]]:
    """Collect what is started, imported, run or written outside of the folder, and end what takes too long."""
    findings: list[str] = []

    def stop(*_: object) -> None:
        findings.append(f"no answer within {SECONDS} seconds")
        raise Hang

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
        max_examples=COUNT,
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
                except Hang:
                    pass  # it is among the findings
            assert not findings
            assert sorted(os.listdir(tmp_path)) == ["outer"]
            assert os.listdir(tmp_path / "outer") == ["input"]
            assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 < MOST_MEMORY
        finally:
            shutil.rmtree(tmp_path / "outer")

    check()
    print(f"{name}: {outcomes}")  # noqa: T201 # shown with -s
    assert outcomes["refused"] > 0


def test_a_hang_and_a_run_of_code_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def read_for_ever() -> None:
        try:
            signal.raise_signal(signal.SIGALRM)
        except Exception as error:
            raise DataError("the reader took it for a fault of the file") from error

    with watched(tmp_path) as findings, pytest.raises(Hang):
        read_for_ever()
    assert findings == [f"no answer within {SECONDS} seconds"]

    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "named_by_a_file.py").write_text("")
    for code in ("eval('1')", "exec('')", "import named_by_a_file"):
        compiled = compile(code, "reader", "exec")
        with watched(tmp_path) as findings:
            eval(compiled)
        assert len(findings) > 1, code
