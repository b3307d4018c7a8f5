"""Workers killed at random and a killed command cost no record, double none, and change no bit."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from fedglass.verdict.directory import RECORDS

from ...processes import alive, lines, wait_for
from .conftest import CASES, COMMAND, PLAN, PLANNED, by_key, finish, titles

Start = Callable[..., "subprocess.Popen[str]"]
KILLS = max(3, CASES // 16)


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same audit by processes of this machine, which nobody disturbs."""
    folder = tmp_path_factory.mktemp("here")
    (folder / "plan.toml").write_text(PLAN)
    command = ("audit", folder / "plan.toml", "-o", folder / "out", "--workers", "2", "--device", "cpu", "-q")
    subprocess.run([*COMMAND, *command], check=True, timeout=900)
    return folder / "out"


def test_killed_workers_cost_nothing(plan: Path, start: Start, here: Path, tmp_path: Path) -> None:
    there = tmp_path / "there"
    process = start("audit", plan, "-o", there, "--executor", "ray", "--workers", 2, "--device", "cpu", "-q")
    killed, chance = 0, random.Random(0)
    while process.poll() is None and killed < KILLS:
        time.sleep(chance.uniform(0.2, 1.0))
        busy = [pid for pid, name in titles(process.pid).items() if name.startswith("ray::fedglass")]
        if busy and lines(there / RECORDS) < CASES - 4:
            os.kill(chance.choice(busy), signal.SIGKILL)
            killed += 1
    finish(process)
    assert killed == KILLS, "the audit ended before enough workers were killed"
    found = by_key(there)
    assert sum(record["attack"] in PLANNED for record in found.values()) == CASES
    assert found == by_key(here)
    assert pictures(there) == pictures(here)


def test_a_killed_command_leaves_nothing_running_and_continues(
    plan: Path, start: Start, here: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    command = ("audit", plan, "-o", out, "--executor", "ray", "--workers", 2, "--device", "cpu", "-q")
    process = start(*command)
    wait_for(lambda: True if lines(out / RECORDS) >= CASES // 4 or process.poll() is not None else None, 300)
    family = titles(process.pid)
    process.kill()
    process.communicate()
    assert process.returncode == -signal.SIGKILL, "the audit ended before it could be killed"
    assert any("raylet" in name for name in family.values())
    wait_for(lambda: True if not any(map(alive, family)) else None)
    survived = lines(out / RECORDS)
    assert 0 < survived < CASES
    finish(start(*command))
    assert by_key(out) == by_key(here)


def pictures(directory: Path) -> dict[str, bytes]:
    kinds = (".png", ".safetensors")
    return {str(f.relative_to(directory)): f.read_bytes() for f in directory.rglob("*") if f.suffix in kinds}
