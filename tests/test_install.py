"""The lines of docs/install.md, the Dockerfile and the package name files and extras that exist."""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import fedglass

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
LINES = re.findall(r"^pip install .*$", (ROOT / "docs" / "install.md").read_text(encoding="utf-8"), re.MULTILINE)
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")


def pinned(path: Path) -> dict[str, str]:
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line and not line.startswith("#")]
    return {name.lower().replace("_", "-"): version for name, _, version in (line.partition("==") for line in lines)}


def test_every_situation_has_a_line() -> None:
    extras = {extra for line in LINES for extra in re.findall(r"\.\[(.*?)\]", line)}
    assert extras == {"flower", "flower,dp", "nvflare", "ray,slurm", "dp,pld"}
    assert "pip install -c constraints.txt ." in LINES


@pytest.mark.parametrize("line", LINES)
def test_a_line_has_the_constraints_of_what_it_installs(line: str) -> None:
    _, _, option, file, *packages = shlex.split(line)
    assert option == "-c"
    pins = pinned(ROOT / file)
    assert pins["torch"] == pinned(ROOT / "constraints.txt")["torch"]
    for extra in (e for package in packages for e in re.findall(r"^\.\[(.*)\]$", package)):
        for name in extra.split(","):
            (only,) = PROJECT["optional-dependencies"][name]
            requirement = Requirement(only)
            if file != "constraints.txt":
                assert requirement.specifier.contains(pins[requirement.name])


def test_frameworks_are_not_installed_by_the_constraints_of_others() -> None:
    """Flower needs an older rich than the plain environment has: such a line ends in a conflict."""
    plain, flower = pinned(ROOT / "constraints.txt"), pinned(ROOT / "constraints-flower.txt")
    assert plain["rich"] != flower["rich"]
    assert all("constraints-flower.txt" in line for line in LINES if "flwr" in line or "flower" in line)


def test_the_version_has_one_place() -> None:
    assert PROJECT["dynamic"] == ["version"]
    assert "version" not in PROJECT
    assert re.fullmatch(r"\d+\.\d+\.\d+", fedglass.__version__)


def test_the_dockerfile_copies_what_it_installs() -> None:
    copied = [name for line in re.findall(r"^COPY (.*) \S+$", DOCKERFILE, re.MULTILINE) for name in line.split()]
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8")
    for name in copied:
        assert (ROOT / name).exists()
        assert f"!{name}\n" in ignored
    install, *_ = re.findall(r"^RUN (.*)$", DOCKERFILE, re.MULTILINE)
    assert {"pyproject.toml", "constraints.txt", "src"} <= set(copied)
    assert install.endswith("-c constraints.txt .")
