"""The versions that are promised are those that are tested: the lowest of each framework, and a recent one."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).parents[1]
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]

LOWEST = {
    "flower": "constraints-flower-lowest.txt",
    "dp": "constraints-flower-lowest.txt",
    "nvflare": "constraints-nvflare-lowest.txt",
    "ray": "constraints-ray.txt",
    "slurm": "constraints-ray.txt",
}
"""Of each extra, the versions with which `make test-...` tests the lowest that it allows; some have no others."""
RECENT = {
    **LOWEST,
    "flower": "constraints-flower.txt",
    "dp": "constraints-flower.txt",
    "nvflare": "constraints-nvflare.txt",
}


def requirement(extra: str) -> Requirement:
    (only,) = EXTRAS[extra]
    return Requirement(only)


def bound(needed: Requirement) -> Version:
    (only,) = needed.specifier
    assert only.operator == ">="
    return Version(only.version)


def pins(name: str) -> dict[str, Version]:
    lines = (ROOT / name).read_text(encoding="utf-8").splitlines()
    pairs = (line.split("==") for line in lines if line and not line.startswith("#"))
    return {package: Version(version) for package, version in pairs}


@pytest.mark.parametrize("extra", LOWEST)
def test_the_lowest_version_of_an_extra_is_tested(extra: str) -> None:
    needed = requirement(extra)

    assert bound(needed) == pins(LOWEST[extra])[needed.name]
    assert bound(needed) <= pins(RECENT[extra])[needed.name]
    assert pins(LOWEST[extra])["torch"] == pins("constraints.txt")["torch"]


@pytest.mark.parametrize(("extra", "framework"), [("flower", "Flower"), ("nvflare", "NVFlare"), ("dp", "Opacus")])
def test_the_readme_and_the_page_name_the_lowest_and_the_recent_one(extra: str, framework: str) -> None:
    name = requirement(extra).name
    lowest, recent = pins(LOWEST[extra])[name], pins(RECENT[extra])[name]

    for page in ("README.md", "docs/bundles.md" if extra == "dp" else f"docs/{extra}.md"):
        assert f"{framework} {lowest} and {recent}" in (ROOT / page).read_text(encoding="utf-8")


def test_the_example_for_flower_asks_for_the_same() -> None:
    project = tomllib.loads((ROOT / "examples" / "flower" / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    asked = [Requirement(each) for each in project["dependencies"]]

    assert [bound(each) for each in asked if each.name == "flwr"] == [bound(requirement("flower"))]


def test_the_bill_of_materials_names_every_locked_package(tmp_path: Path) -> None:
    file = tmp_path / "fedglass.cdx.json"
    subprocess.run([sys.executable, ROOT / "tools" / "bill.py", file], check=True)
    bill = json.loads(file.read_text(encoding="utf-8"))

    assert (bill["bomFormat"], bill["specVersion"], bill["version"]) == ("CycloneDX", "1.6", 1)
    assert bill["metadata"]["component"]["name"] == "fedglass"
    names = [part["name"] for part in bill["components"]]
    locked = re.findall(r"^(\S+)==", (ROOT / "requirements-core.lock").read_text(encoding="utf-8"), re.MULTILINE)
    assert names == [*locked, "torch"]
    for part in bill["components"]:
        assert part["type"] == "library"
        assert part["purl"] == part["bom-ref"] == f"pkg:pypi/{part['name']}@{part['version']}"
        assert part["name"] == "torch" or part["hashes"]
        assert all(re.fullmatch("[0-9a-f]{64}", each["content"]) for each in part.get("hashes", ()))
        assert all(each.keys() in ({"expression"}, {"license"}) for each in part.get("licenses", ()))
    assert sum("licenses" in part for part in bill["components"]) > len(names) / 2
    assert bill["dependencies"][0]["dependsOn"] == [part["bom-ref"] for part in bill["components"]]
