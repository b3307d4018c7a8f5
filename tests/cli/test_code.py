"""A plan's own code: named before it runs, found only where the user says, and not run at all on request."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

Run = Callable[..., Result]
Write = Callable[..., Path]

MODULE = """
import pathlib, sys
print("the code runs", file=sys.stderr)
pathlib.Path(__file__).with_name("trace").touch()
from torch import nn

def make(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(shape[0] * shape[1] * shape[2], classes))
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a module beside the plan, another one in every test."""
    name = f"own_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    return f"{name}:make"


def plan_with(write_plan: Write, name: str) -> Path:
    return write_plan(('"lenet"', f'"{name}"'), ('"uniform"', '"default"'))


@pytest.mark.parametrize("command", ["check", "audit"])
def test_code_beside_the_plan_is_not_found_by_itself(
    command: str, own: str, fedglass: Run, write_plan: Write, tmp_path: Path
) -> None:
    """Nor in the current folder, which here is the same."""
    refused = fedglass(command, plan_with(write_plan, own))
    assert refused.exit_code == 2
    assert "--code DIR names a folder" in refused.stderr
    assert not (tmp_path / "trace").exists()


def test_it_is_announced_and_then_imported_from_the_folder(
    own: str, fedglass: Run, write_plan: Write, tmp_path: Path
) -> None:
    before = list(sys.path)
    found = fedglass("check", plan_with(write_plan, own), "--code", tmp_path)
    assert found.exit_code == 0, found.output
    notice = f"This plan runs code outside fedglass: {own} (model). If it is not yours, read that code first."
    assert found.stderr.splitlines() == [notice, "the code runs"]
    assert "Sequential" in found.stdout
    assert sys.path == before


def test_a_plan_without_code_says_nothing_of_it(fedglass: Run, write_plan: Write) -> None:
    assert fedglass("check", write_plan()).stderr == ""


def test_workers_find_it_too(own: str, write_plan: Write, tmp_path: Path) -> None:
    plan = plan_with(write_plan, own)
    command = [sys.executable, "-m", "fedglass", "audit", plan, "-o", tmp_path / "out", "--workers", "2", "--code", "."]
    done = subprocess.run([*command, "--json"], capture_output=True, text=True)
    assert json.loads(done.stdout)["cases"] == {"planned": 8, "run": 8, "failed": 0}, done.stderr


def test_as_a_module_the_current_folder_is_not_searched(own: str, write_plan: Write, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "fedglass", "check", plan_with(write_plan, own)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    assert "does not import: ModuleNotFoundError" in done.stderr
    assert not (tmp_path / "trace").exists()


def test_without_code_the_rest_is_checked(own: str, fedglass: Run, write_plan: Write, tmp_path: Path) -> None:
    found = fedglass("check", plan_with(write_plan, own), "--no-code")
    assert found.exit_code == 0, found.output
    words = " ".join(found.stdout.split())
    assert f"is sound, except for code that was not checked: {own} (model)." in words
    assert "inverting_gradients" in words
    assert not (tmp_path / "trace").exists()
    told = json.loads(fedglass("check", plan_with(write_plan, own), "--no-code", "--json").stdout)
    assert (told["sound"], told["complete"]) == (True, False)
    assert told["not_checked"] == told["code"] == [{"kind": "models", "name": own, "origin": own}]
    bad = fedglass("check", write_plan(("examples = 1", "examples = 99"), ('"lenet"', f'"{own}"')), "--no-code")
    assert bad.exit_code == 2
    assert "asks for 198 examples" in bad.stderr


def test_without_code_a_plan_that_has_none_is_checked_in_full(fedglass: Run, write_plan: Write) -> None:
    plan = write_plan()
    assert fedglass("check", plan, "--no-code").stdout == fedglass("check", plan).stdout


def test_folders_that_make_no_sense(fedglass: Run, write_plan: Write, tmp_path: Path) -> None:
    plan = write_plan()
    for arguments, words in (
        (("audit", plan, "--code", tmp_path / "none"), "--code: no such folder: "),
        (("check", plan, "--code", plan), "--code: no such folder: "),
        (("check", plan, "--code", tmp_path, "--no-code"), "leave out one of them"),
    ):
        refused = fedglass(*arguments)
        assert refused.exit_code == 2
        assert words in refused.stderr
        assert len(refused.stderr.splitlines()) == 1
