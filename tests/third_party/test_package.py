"""A package of others brings an attack, a rule and a metric, and fedglass finds, plays and shows them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from fedglass.verdict.directory import RECORDS, SUMMARY, RecordFile
from fedglass.verdict.judge import judge
from fedglass.verdict.summary import read_summary

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "examples" / "third_party_package"

Done = subprocess.CompletedProcess[str]


@pytest.fixture(scope="module")
def fedglass(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Done]:
    """The command line in a process of its own, with the package installed for it."""
    place = tmp_path_factory.mktemp("installed")
    # Building writes beside the sources: those of the repository stay as they are.
    source = Path(shutil.copytree(PACKAGE, place / "source"))
    options = ["--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check"]
    subprocess.run(
        [sys.executable, "-m", "pip", "install", *options, "--target", place / "site", source], check=True, cwd=place
    )
    paths = [str(ROOT / "src"), str(place / "site")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "COLUMNS": "300"}

    def run(*arguments: object) -> Done:
        command = [sys.executable, "-m", "fedglass", *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, env=environment, cwd=place)

    return run


def entry(listed: str, name: str) -> list[str]:
    """The lines about one name."""
    lines = [line.rstrip() for line in listed.splitlines()]
    start = lines.index(name)
    end = next((i for i in range(start + 1, len(lines)) if not lines[i].startswith(" ")), len(lines))
    return [line.strip() for line in lines[start + 1 : end]]


@pytest.mark.parametrize(
    ("kind", "name", "said"),
    [
        ("attacks", "huber_inversion", ["options: delta=0.01, tv=0.0001, iterations=500"]),
        ("rules", "entrywise_median", ["paper: Yin et al., 2018, Definition 1"]),
        ("metrics", "mae", ["mean absolute error of the pixels", "reading: lower leaks more"]),
    ],
)
def test_its_parts_are_listed_with_their_origin(
    fedglass: Callable[..., Done], kind: str, name: str, said: list[str]
) -> None:
    listed = fedglass("list", kind, "--long")
    assert listed.returncode == 0, listed.stderr
    found = entry(listed.stdout, name)
    assert "from: package fedglass-huber 1.2" in found
    assert set(said) <= set(found)


def test_a_plan_names_them_and_the_report_shows_them(fedglass: Callable[..., Done], tmp_path: Path) -> None:
    out = tmp_path / "out"
    # Two workers: what a worker is sent must be found by a process that starts anew.
    done = fedglass("audit", PACKAGE / "plan.toml", "-o", out, "--workers", 2)
    assert done.returncode == 3, done.stdout + done.stderr
    assert "INCONCLUSIVE" in done.stdout
    records = [record for record in RecordFile(out / RECORDS).read() if record.attack == "huber_inversion"]
    assert len(records) == 2
    for record in records:
        assert (record.status, record.attack) == ("done", "huber_inversion")
        assert "Huber(delta=0.01)" in record.attack_repr
        assert record.accepted == record.participants
        (error,) = record.metrics["mae"]
        assert error is not None
        assert 0 < error < 1
    # This process does not have the package: the scale is read from the summary.
    gate = read_summary(out / SUMMARY).judged_by()
    assert gate.rule == "MAE below 0.001"
    assert judge(records, gate).exit_code == done.returncode
    assert "MAE" in (out / "report.html").read_text()


def test_its_absence_is_said(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "fedglass", "check", str(PACKAGE / "plan.toml")]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 2
    assert "Unknown attack 'huber_inversion'" in done.stderr
