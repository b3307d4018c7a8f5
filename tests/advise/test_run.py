"""A whole search: it ends, continues where it was stopped, and recommends what an audit confirms."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from fedglass.cli.main import cli
from fedglass.verdict.directory import RECORDS, RecordFile

GLYPHS = """
[federation]
data = "glyphs"
size = 12
examples = 3
test_examples = 40
model = "lenet_tanh"
training = { lr = 0.1, batch_size = 1 }
"""
BRIGHT_OR_DARK = """
[federation]
data = "npz:two.npz"
examples = 100
test_examples = 40
model = "two_classes:make"
training = { lr = 4.0, batch_size = 100 }
"""
ADVICE = """
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
NETWORK = """
from torch import nn

def make(classes):
    return nn.Sequential(nn.AvgPool2d(4), nn.Flatten(), nn.Linear(9, classes))
"""
PRUNING, NOISE = 'magnitude_pruning"', 'dpsgd", clip = 1.0'


@pytest.fixture
def advise(tmp_path: Path) -> Callable[..., Result]:
    def run(chain: str, out: str, *options: str, federation: str = GLYPHS) -> Result:
        (tmp_path / "plan.toml").write_text(federation + ADVICE.replace("CHAIN", chain))
        arguments = ["advise", str(tmp_path / "plan.toml"), "-o", str(tmp_path / out), "--workers", "1", *options]
        return CliRunner().invoke(cli, arguments)

    return run


def histories(directory: Path) -> dict[str, list[str]]:
    return {str(f): [r.key for r in RecordFile(f).history()] for f in sorted(directory.rglob(RECORDS))}


def test_a_clear_setting_is_recommended_and_its_plan_is_clear(advise: Callable[..., Result], tmp_path: Path) -> None:
    labels = np.arange(400) % 2
    images = 48 + 160 * labels[:, None, None] + np.random.default_rng(0).integers(-40, 40, (400, 12, 12))
    np.savez(tmp_path / "two.npz", images=images.astype("uint8"), labels=labels)
    (tmp_path / "two_classes.py").write_text(NETWORK)
    learn = partial(advise, NOISE, "out", "--json", "-q", "--code", str(tmp_path), federation=BRIGHT_OR_DARK)
    answer = learn()
    assert answer.exit_code == 0, answer.output
    found = json.loads(answer.stdout)
    best = found["recommended"]
    assert best["verdict"] == "clear"
    assert best["learned"]
    assert best["certified"] <= found["gate"]["max_success"]
    assert best["attacks"] == ["idlg"], "the searches of the plan ran too"
    clear = [s["accuracy"]["mean"] for s in found["settings"] if s["verdict"] == "clear"]
    assert best["accuracy"]["mean"] == max(clear)
    checked = found["checked"][-1]
    assert checked["verdict"] == "clear"
    assert checked["folder"] != best["folder"]

    before = histories(tmp_path / "out")
    assert all(len(keys) == len(set(keys)) for keys in before.values()), "nothing ran twice"
    again = learn()
    assert json.loads(again.stdout) == found
    assert histories(tmp_path / "out") == before, "nothing that is finished runs again"

    plan = tmp_path / "out" / "recommended.toml"
    audited = CliRunner().invoke(
        cli, ["audit", str(plan), "-o", str(tmp_path / "audit"), "--workers", "1", "-q", "--code", str(tmp_path)]
    )
    assert audited.exit_code == 0, audited.output
    page = (tmp_path / "out" / "report.html").read_text()
    assert page.count("<svg") == 2
    assert 'class="ring"' in page
    assert "3 settings of 1 defence were compared" in page

    refused = advise(PRUNING, "out")
    assert refused.exit_code == 2
    assert "another plan's records" in refused.output


def test_a_setting_that_has_learned_nothing_is_not_recommended(advise: Callable[..., Result], tmp_path: Path) -> None:
    answer = advise(NOISE, "out", "--json")
    assert answer.exit_code == 3, answer.output
    found = json.loads(answer.stdout)
    assert found["state"] == "none"
    assert any(s["verdict"] == "clear" and not s["learned"] for s in found["settings"])
    assert not found["checked"], "nothing is audited again"
    assert "meets the gate but has learned nothing" in (tmp_path / "out" / "report.html").read_text()
    assert not (tmp_path / "out" / "recommended.toml").exists()


def test_without_a_clear_setting_the_nearest_is_shown(advise: Callable[..., Result], tmp_path: Path) -> None:
    answer = advise(PRUNING, "out")
    assert answer.exit_code == 3, answer.output
    assert "NO SETTING MEETS THE GATE" in answer.output
    assert "nothing bounds what an adversary reads" in answer.output
    assert not (tmp_path / "out" / "recommended.toml").exists()


def test_a_range_that_ends_before_the_gate_is_said_to(advise: Callable[..., Result]) -> None:
    answer = advise(f"{NOISE} }}\nstrongest = 0.2  #", "out")
    assert answer.exit_code == 3, answer.output
    assert "dpsgd (clip 1.0): noise_multiplier 0.692 would meet the gate; set strongest = 0.7." in answer.output
    assert "2 settings of 1 defence " in answer.output


def test_test_examples_of_one_class_are_flagged(advise: Callable[..., Result], tmp_path: Path) -> None:
    images, labels = np.random.default_rng(0).integers(0, 255, (20, 12, 12), np.uint8), np.arange(20) // 19
    np.savez(tmp_path / "one.npz", images=images, labels=labels)
    federation = GLYPHS.replace('"glyphs"\nsize = 12', '"npz:one.npz"').replace(
        "test_examples = 40", "test_examples = 1"
    )
    answer = advise(PRUNING, "out", "--minutes", "1e-9", federation=federation)
    assert "All test examples of a seed have the same class" in answer.output
    assert ", 2 seeds)" in answer.output, "an interval says how many seeds it rests on"


def test_stopped_in_time_it_says_so_and_every_run_goes_further(advise: Callable[..., Result], tmp_path: Path) -> None:
    for settings in ("1 setting of 1 defence was", "2 settings of 1 defence were"):
        stopped = advise(PRUNING, "out", "--minutes", "1e-9")
        assert stopped.exit_code == 3, stopped.output
        assert "The time was over" in stopped.output
        assert f"{settings} compared, each on 2 seeds." in stopped.output
    weakest = next((tmp_path / "out").glob("1-share-0.5"))
    done = histories(weakest)
    finished = advise(PRUNING, "out", "--minutes", "1e-9")
    assert "The time was over" not in finished.output
    assert histories(weakest) == done, "nothing that is finished runs again"
