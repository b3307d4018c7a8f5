"""Commands as processes of their own, and what runs under them. Skipped where Ray is not installed."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import pytest

from fedglass.verdict.directory import RECORDS, RecordFile
from fedglass.verdict.records import Record

from ...processes import descendants

T = TypeVar("T")
COMMAND = [sys.executable, "-m", "fedglass"]
OWN = {"RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", "RAY_AUTH_MODE", "RAY_ADDRESS"}
REPEATS = int(os.environ.get("FEDGLASS_SWEEP_REPEATS", "2"))
"""Of 20 cases: 10 of them are a sweep of 200."""
CASES = 20 * REPEATS
PLANNED = ("inverting_gradients", "idlg")
"""The attacks of the plan; every audit also plays exact attacks, the candidate game and certificates."""

PLAN = f"""
repeats = {REPEATS}
effort = "quick"
[federation]
data = "photos"
size = 16
clients = 10
examples = 1
model = "lenet"
init = "uniform"
training.lr = 0.1
[adversary]
client = "all"
[[attacks]]
name = "inverting_gradients"
iterations = 2
[[attacks]]
name = "idlg"
iterations = 2
[metrics]
names = ["psnr", "ssim"]
[gate]
threshold = 99.0
inconclusive_fails = false
"""


def pytest_collection_modifyitems(items: Sequence[pytest.Item]) -> None:
    if importlib.util.find_spec("ray") is None:
        for item in items:
            if Path(__file__).parent in item.path.parents:
                item.add_marker(pytest.mark.skip(reason="Ray is not installed: make test-ray"))


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Of a user who has no token, whose home is empty."""
    kept = {name: value for name, value in os.environ.items() if name not in OWN}
    return {**kept, "HOME": str(tmp_path), "OMP_NUM_THREADS": "1"}


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    path = tmp_path / "plan.toml"
    path.write_text(PLAN)
    return path


@pytest.fixture
def start(environment: dict[str, str]) -> Callable[..., subprocess.Popen[str]]:
    """Starts a command of fedglass."""

    def started(*arguments: object, **more: str) -> subprocess.Popen[str]:
        command = [*COMMAND, *map(str, arguments)]
        pipe = subprocess.PIPE
        return subprocess.Popen(command, env={**environment, **more}, stdout=pipe, stderr=pipe, text=True)

    return started


def finish(process: subprocess.Popen[str]) -> None:
    """Wait for a command that passes its gate."""
    _, said = process.communicate(timeout=900)
    assert process.returncode == 0, said


def by_key(directory: Path) -> dict[str, dict[str, object]]:
    """The records without what depends on the day; each case has exactly one."""
    history = RecordFile(directory / RECORDS).history()
    found = {record.key: timeless(record) for record in history}
    assert len(history) == len(found), "a case was recorded twice"
    assert {record.status for record in history} == {"done"}
    return found


def timeless(record: Record) -> dict[str, object]:
    return record.model_dump(exclude={"seconds", "peak_mib", "finished"})


def titles(ancestor: int) -> dict[int, str]:
    """The processes under a process, with what they are called."""
    return {pid: title(pid) for pid in descendants(ancestor)}


def title(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    return ""
