"""`fedglass train autoencoder`: what it writes, how it continues, what it refuses, and what reports say of it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner, Result
from PIL import Image
from safetensors.torch import load_file

from fedglass.cli.main import cli
from fedglass.core.resumable import STATE
from fedglass.diffusion.folder import WEIGHTS, load_autoencoder
from fedglass.diffusion.stored import TRAINED_ON, trained_on
from fedglass.diffusion.training import ImageModelTraining
from fedglass.train.image_models import PICTURE


@pytest.fixture
def data(tmp_path: Path) -> str:
    images = np.random.default_rng(0).integers(0, 255, (20, 8, 8, 3), dtype=np.uint8)
    np.savez(tmp_path / "d.npz", images=images, labels=np.arange(20) % 3)
    return f"npz:{tmp_path / 'd.npz'}"


def run(*words: str) -> Result:
    return CliRunner().invoke(cli, ["train", "autoencoder", *words])


def trained(data: str, output: Path, *options: str) -> str:
    result = run(data, "-o", str(output), *options)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_the_folder_holds_a_network_what_it_has_seen_and_a_picture(data: str, tmp_path: Path) -> None:
    said = trained(data, tmp_path / "m", "--steps", "3")
    assert "codes of 8 x 1 x 1 numbers after 3 steps" in said
    assert "on 20 images of d; reconstruction error RMSE" in said
    assert load_autoencoder(tmp_path / "m").shape == (3, 8, 8)
    assert trained_on(tmp_path / "m", "autoencoder") == "20 images of d"
    with Image.open(tmp_path / "m" / PICTURE) as picture:
        assert picture.size == (160, 120)  # 8 x 6 images of 8 pixels with a border, twice as large


def test_json_is_all_on_stdout_and_quiet_says_nothing(data: str, tmp_path: Path) -> None:
    answer = json.loads(trained(data, tmp_path / "m", "--steps", "2", "--json"))
    assert (answer["steps"], answer["images"], answer["code"]) == (2, 20, [8, 1, 1])
    assert answer["paths"]["model"] == str(tmp_path / "m")
    assert 0 < answer["rmse"] < 1
    quiet = run(data, "-o", str(tmp_path / "m"), "--steps", "2", "-q")
    assert (quiet.exit_code, quiet.output) == (0, "")


def test_the_seed_decides_and_a_stopped_training_continues_as_if_it_had_not_been(
    data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedglass.diffusion.training.MOST_SECONDS_UNSAVED", 0.0)
    folders = [tmp_path / name for name in ("whole", "again", "other", "parts")]
    for folder, seed in zip(folders[:3], (0, 0, 1), strict=True):
        trained(data, folder, "--steps", "6", "--seed", str(seed))
    is_due = ImageModelTraining.is_due

    def stopping(self: ImageModelTraining, unsaved: float) -> bool:
        if self.step == 4:
            raise KeyboardInterrupt
        return is_due(self, unsaved)

    with monkeypatch.context() as patch:
        patch.setattr(ImageModelTraining, "is_due", stopping)
        stopped = run(data, "-o", str(folders[3]), "--steps", "6")
    assert stopped.exit_code == 3
    assert "run the same command again to continue" in stopped.output
    assert not (folders[3] / WEIGHTS).exists()
    trained(data, folders[3], "--steps", "6")
    whole, again, other, parts = (load_file(folder / WEIGHTS) for folder in folders)
    assert all(torch.equal(whole[name], again[name]) and torch.equal(whole[name], parts[name]) for name in whole)
    assert not all(torch.equal(whole[name], other[name]) for name in whole)


def test_more_steps_continue_and_other_data_are_refused(data: str, tmp_path: Path) -> None:
    trained(data, tmp_path / "m", "--steps", "2")
    assert "after 4 steps" in trained(data, tmp_path / "m", "--steps", "4")
    refused = run("glyphs", "-o", str(tmp_path / "m"), "--steps", "5")
    assert refused.exit_code == 2
    assert "holds another training" in refused.output
    (tmp_path / "m" / STATE).write_bytes(b"rubbish")
    damaged = run(data, "-o", str(tmp_path / "m"), "--steps", "5")
    assert damaged.exit_code == 2
    assert "delete it to start over" in damaged.output


def test_it_learns(tmp_path: Path) -> None:
    errors = [
        json.loads(trained("glyphs", tmp_path / str(steps), "--steps", str(steps), "--side", "16", "--json"))["rmse"]
        for steps in (1, 60)
    ]
    assert errors[1] < 0.7 * errors[0]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--lr", "-1", "--steps", "1"], "lr must be a positive number"),
        (["--split", "test", "--steps", "1"], "test"),
    ],
)
def test_what_can_not_be_trained_is_refused(data: str, tmp_path: Path, options: list[str], words: str) -> None:
    result = run(data, "-o", str(tmp_path / "m"), *options)
    assert result.exit_code == 2
    assert words in result.output
    file = run(data, "-o", str(tmp_path / "d.npz"), "--steps", "1")
    assert file.exit_code == 2
    assert "is a file: name a folder" in file.output


PLAN = """
seed = 1
[federation]
data = "glyphs"
size = 16
clients = 2
examples = 1
model = "lenet_tanh"
training = {{ lr = 0.1 }}
[adversary]
view = "peer"
[[attacks]]
name = "maliciously_curious_client_published"
decoder = "{decoder}"
iterations = 2
[gate]
metric = "rmse"
threshold = 0.05
inconclusive_fails = false
[metrics]
names = ["psnr", "rmse"]
"""


@pytest.mark.parametrize(
    ("decoder", "words"),
    [
        ("codes", "an autoencoder that was trained on 300 images of glyphs"),
        ("own", "an autoencoder that the adversary has trained on its own examples"),
    ],
)
def test_threat_model_and_report_name_where_the_decoder_comes_from(
    tmp_path: Path, decoder: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if decoder == "codes":
        trained("glyphs", tmp_path / "codes", "--steps", "2", "--side", "16")
        images = trained_on(tmp_path / "codes", "autoencoder").split()[0]
        words = words.replace("300", images)
    plan = tmp_path / "plan.toml"
    plan.write_text(PLAN.format(decoder=decoder))
    checked = CliRunner().invoke(cli, ["check", str(plan)])
    assert checked.exit_code == 0, checked.output
    assert words in " ".join(checked.output.split())
    audited = CliRunner().invoke(cli, ["audit", str(plan), "-o", str(tmp_path / "out"), "-q"])
    assert audited.exit_code in (0, 1, 3), audited.output
    assert words in (tmp_path / "out" / "report.html").read_text()


def test_a_plan_with_a_folder_that_says_nothing_is_refused(data: str, tmp_path: Path) -> None:
    trained("glyphs", tmp_path / "codes", "--steps", "1", "--side", "16")
    (tmp_path / "codes" / TRAINED_ON).unlink()
    plan = tmp_path / "plan.toml"
    plan.write_text(PLAN.format(decoder="codes"))
    checked = CliRunner().invoke(cli, ["check", str(plan)])
    assert checked.exit_code == 2
    assert "does not say what its network was trained on" in checked.output
