"""Advice is the same wherever its audits ran: in this process, on Ray, and in submitit's jobs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from fedglass.cli.main import cli
from fedglass.verdict.directory import RECORDS, RecordFile

PLAN = """
[federation]
data = "glyphs"
size = 12
examples = 3
test_examples = 40
model = "lenet_tanh"
training = { lr = 0.1, batch_size = 1 }
[advise]
strengths = 2
seeds = 2
[[advise.chain]]
defences = { name = "magnitude_pruning" }
[metrics]
names = ["psnr"]
[[attacks]]
name = "idlg"
iterations = 2
"""


def advice(folder: Path, *options: str) -> tuple[dict[str, Any], list[str]]:
    """Return the settings of an advice, and the keys of the records behind it."""
    folder.mkdir()
    (folder / "plan.toml").write_text(PLAN)
    arguments = ["advise", str(folder / "plan.toml"), "-o", str(folder / "out"), "--device", "cpu", "-q", "--json"]
    result = CliRunner().invoke(cli, [*arguments, *options])
    assert result.exit_code in (0, 3), result.output
    told = json.loads(result.stdout)
    keys = [record.key for file in sorted((folder / "out").rglob(RECORDS)) for record in RecordFile(file).history()]
    return {name: told[name] for name in ("settings", "recommended", "gate")}, keys


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], list[str]]:
    return advice(tmp_path_factory.mktemp("here") / "plan", "--workers", "1")


@pytest.mark.parametrize("options", [("ray",), ("slurm", "-x", "system=local")], ids=lambda options: options[0])
def test_advice_on_a_cluster_is_that_of_this_machine(
    options: tuple[str, ...], here: tuple[dict[str, Any], list[str]], tmp_path: Path
) -> None:
    settings, keys = advice(tmp_path / "there", "--workers", "2", "--executor", *options)
    assert settings == here[0]
    assert sorted(keys) == sorted(here[1])
    assert len(keys) == len(set(keys)), "a case was recorded twice"
