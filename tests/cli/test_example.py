"""The example of a recording is run as its page says."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

EXAMPLE = Path(__file__).parents[2] / "examples" / "recording"


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    """A copy in which the script has run."""
    place = Path(shutil.copytree(EXAMPLE, tmp_path / "recording", ignore=shutil.ignore_patterns("*.npz", "out")))
    subprocess.run([sys.executable, "record.py"], check=True, cwd=place)
    return place


def test_the_script_needs_no_fedglass_and_ten_lines_to_record() -> None:
    text = (EXAMPLE / "record.py").read_text(encoding="utf-8")
    assert not re.search(r"^\s*(import|from) fedglass", text, flags=re.MULTILINE)
    lines = text.partition("# ---- Recording")[2].splitlines()[1:]
    assert len([line for line in lines if line.strip()]) <= 10


def test_what_was_recorded_is_audited(
    recorded: Path, fedglass: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(recorded)
    assert fedglass("check", "plan.toml", "--code", ".").exit_code == 0
    plan = recorded / "plan.toml"
    plan.write_text(plan.read_text(encoding="utf-8").replace("iterations = 1000", "iterations = 200"), encoding="utf-8")
    done = fedglass("audit", "plan.toml", "--code", ".", "-o", "out", "--workers", 1, "--json")
    told = json.loads(done.stdout)
    assert told["cases"] == {"planned": 4, "run": 4, "failed": 0}
    assert (told["state"], done.exit_code) == ("leak", 1)
    assert (recorded / told["paths"]["report"]).is_file()


def test_the_page_names_what_is_there() -> None:
    words = (EXAMPLE / "README.md").read_text(encoding="utf-8")
    for name in ("record.py", "network.py", "plan.toml"):
        assert name in words
        assert (EXAMPLE / name).is_file()
