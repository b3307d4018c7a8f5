"""`fedglass train diffusion`: what it writes, how it continues, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from PIL import Image
from safetensors import safe_open
from safetensors.torch import load_file

from fedglass.cli.main import cli
from fedglass.core.resumable import STATE
from fedglass.diffusion.folder import WEIGHTS, load_folder
from fedglass.diffusion.training import ImageModelTraining
from fedglass.train import image_models as training
from fedglass.train.image_models import PICTURE, contact_sheet


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """A network that trains in no time."""
    monkeypatch.setattr(training, "SIZES", {"small": ((8, 8), 1, 2), "medium": None, "large": None})


@pytest.fixture
def data(tmp_path: Path) -> str:
    images = np.random.default_rng(0).integers(0, 255, (12, 8, 8, 3), dtype=np.uint8)
    np.savez(tmp_path / "d.npz", images=images, labels=np.arange(12) % 3)
    return f"npz:{tmp_path / 'd.npz'}"


def trained(data: str, output: Path, *options: str) -> str:
    result = CliRunner().invoke(cli, ["train", "diffusion", data, "-o", str(output), *options])
    assert result.exit_code == 0, result.output
    return result.output


def test_the_folder_holds_a_model_and_a_picture_of_its_samples(data: str, tmp_path: Path) -> None:
    said = trained(data, tmp_path / "m", "--steps", "3")
    assert "after 3 steps" in said
    assert "12 images of d" in said
    assert load_folder(tmp_path / "m").shape == (3, 8, 8)
    with Image.open(tmp_path / "m" / PICTURE) as picture:
        assert picture.size == (160, 160)  # 8 x 8 images of 8 pixels with a border, twice as large


def test_a_training_that_was_stopped_continues_as_if_it_had_not_been(
    data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    monkeypatch.setattr("fedglass.diffusion.training.MOST_SECONDS_UNSAVED", 0.0)
    trained(data, whole, "--steps", "6")
    is_due = ImageModelTraining.is_due

    def stopping(self: ImageModelTraining, unsaved: float) -> bool:
        if self.step == 5:
            raise KeyboardInterrupt
        return is_due(self, unsaved)

    with monkeypatch.context() as patch:
        patch.setattr(ImageModelTraining, "is_due", stopping)
        result = CliRunner().invoke(cli, ["train", "diffusion", data, "-o", str(parts), "--steps", "6"])
    assert result.exit_code == 3
    assert "run the same command again to continue" in result.output
    with safe_open(str(parts / STATE), framework="pt") as file:
        assert json.loads(file.metadata()["way"])["step"] == 4
    assert load_folder(parts).shape == (3, 8, 8)
    trained(data, parts, "--steps", "6")
    one, two = (load_file(folder / WEIGHTS) for folder in (whole, parts))
    assert all(torch.equal(one[name], two[name]) for name in one)


def test_more_steps_continue_and_other_options_are_refused(data: str, tmp_path: Path) -> None:
    trained(data, tmp_path / "m", "--steps", "2")
    assert "after 4 steps" in trained(data, tmp_path / "m", "--steps", "4")
    refused = CliRunner().invoke(
        cli, ["train", "diffusion", data, "-o", str(tmp_path / "m"), "--seed", "1", "--steps", "2"]
    )
    assert refused.exit_code == 2
    assert "holds another training" in refused.output
    (tmp_path / "m" / STATE).write_bytes(b"rubbish")
    damaged = CliRunner().invoke(cli, ["train", "diffusion", data, "-o", str(tmp_path / "m"), "--steps", "2"])
    assert damaged.exit_code == 2
    assert "delete it to start over" in damaged.output


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--kind", "gan", "--steps", "1"], "Unknown kind of diffusion model 'gan'"),
        (["--lr", "-1", "--steps", "1"], "lr must be a positive number"),
        (["--split", "test", "--steps", "1"], "test"),
    ],
)
def test_what_can_not_be_trained_is_refused(data: str, tmp_path: Path, options: list[str], words: str) -> None:
    result = CliRunner().invoke(cli, ["train", "diffusion", data, "-o", str(tmp_path / "m"), *options])
    assert result.exit_code == 2
    assert words in result.output


def test_a_plan_is_still_what_train_takes(tmp_path: Path) -> None:
    result = CliRunner().invoke(cli, ["train", str(tmp_path / "none.toml")])
    assert result.exit_code == 2
    assert "none.toml" in result.output


def test_samples_of_all_channels_can_be_drawn() -> None:
    for channels in (1, 2, 3, 4):
        assert contact_sheet(torch.rand(3, channels, 5, 5)).size == (8 * 7 * 2, 7 * 2)
