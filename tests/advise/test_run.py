"""A whole search: it ends, continues where it was stopped, and recommends what an audit confirms."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

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
strengths = 3
seeds = 2
[[advise.chain]]
defences = { name = "CHAIN }
[metrics]
names = ["psnr"]
[[attacks]]
name = "idlg"
iterations = 1
"""
PRUNING, NOISE = 'magnitude_pruning"', 'dpsgd", clip = 1.0'


@pytest.fixture
def advise(tmp_path: Path) -> Callable[..., Result]:
    def run(chain: str, out: str, *options: str) -> Result:
        (tmp_path / "plan.toml").write_text(PLAN.replace("CHAIN", chain))
        arguments = ["advise", str(tmp_path / "plan.toml"), "-o", str(tmp_path / out), "--workers", "1", *options]
        return CliRunner().invoke(cli, arguments)

    return run


def histories(directory: Path) -> dict[str, list[str]]:
    return {str(f): [r.key for r in RecordFile(f).history()] for f in sorted(directory.rglob(RECORDS))}


def test_a_clear_setting_is_recommended_and_its_plan_is_clear(advise: Callable[..., Result], tmp_path: Path) -> None:
    answer = advise(NOISE, "out", "--json", "-q")
    assert answer.exit_code == 0, answer.output
    found = json.loads(answer.stdout)
    best = found["recommended"]
    assert best["verdict"] == "clear"
    assert best["certified"] <= found["gate"]["max_success"]
    assert best["attacks"] == ["idlg"], "the searches of the plan ran too"
    clear = [s["accuracy"]["mean"] for s in found["settings"] if s["verdict"] == "clear"]
    assert best["accuracy"]["mean"] == max(clear)
    checked = found["checked"][-1]
    assert checked["verdict"] == "clear"
    assert checked["folder"] != best["folder"]

    before = histories(tmp_path / "out")
    assert all(len(keys) == len(set(keys)) for keys in before.values()), "nothing ran twice"
    again = advise(NOISE, "out", "--json", "-q")
    assert json.loads(again.stdout) == found
    assert histories(tmp_path / "out") == before, "nothing that is finished runs again"

    plan = tmp_path / "out" / "recommended.toml"
    audited = CliRunner().invoke(cli, ["audit", str(plan), "-o", str(tmp_path / "audit"), "--workers", "1", "-q"])
    assert audited.exit_code == 0, audited.output
    page = (tmp_path / "out" / "report.html").read_text()
    assert page.count("<svg") == 2
    assert 'class="ring"' in page
    assert "3 settings of 1 defences were compared" in page

    refused = advise(PRUNING, "out")
    assert refused.exit_code == 2
    assert "another plan's records" in refused.output


def test_without_a_clear_setting_the_nearest_is_shown(advise: Callable[..., Result], tmp_path: Path) -> None:
    answer = advise(PRUNING, "out")
    assert answer.exit_code == 3, answer.output
    assert "NO SETTING MEETS THE GATE" in answer.output
    assert "nothing bounds what an adversary reads" in answer.output
    assert not (tmp_path / "out" / "recommended.toml").exists()


def test_stopped_in_time_it_says_so_and_continues(advise: Callable[..., Result], tmp_path: Path) -> None:
    stopped = advise(PRUNING, "out", "--minutes", "1e-9")
    assert stopped.exit_code == 2
    assert "raise --minutes" in stopped.output
    assert advise(PRUNING, "out").exit_code == 3
