"""The tutorial for a loop of one's own, followed as its page says."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

TUTORIAL = Path(__file__).parents[2] / "examples" / "pytorch"


@pytest.mark.skipif(not TUTORIAL.is_dir(), reason="the examples are not beside the tests")
def test_the_tutorial_ends_as_it_says(tmp_path: Path) -> None:
    for file in TUTORIAL.glob("*.py"):
        shutil.copy(file, tmp_path)

    def run(*command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *command], cwd=tmp_path, capture_output=True, text=True, timeout=600, check=False
        )

    made = run("federation.py")
    assert made.returncode == 0, made.stderr[-2000:]
    told = run("-m", "fedglass", "record-info", "bundle")
    assert "2 rounds, 2 clients, complete" in told.stdout
    assert "Contradictions" not in told.stdout
    done = run("-m", "fedglass", "audit", "bundle", "-o", "out", "--model", "network:Net", "--code", ".")
    assert done.returncode == 1, done.stderr[-2000:]
    assert "LEAK FOUND" in done.stdout
    assert (tmp_path / "out" / "report.html").exists()
