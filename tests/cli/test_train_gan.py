"""`fedglass train gan`: what it writes and says, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from fedglass.cli.main import cli
from fedglass.diffusion.gan import stored_gan
from fedglass.train.image_models import PICTURE


@pytest.fixture
def data(tmp_path: Path) -> str:
    images = np.random.default_rng(0).integers(0, 255, (12, 8, 8, 3), dtype=np.uint8)
    np.savez(tmp_path / "d.npz", images=images, labels=np.arange(12) % 3)
    return f"npz:{tmp_path / 'd.npz'}"


def run(*words: str) -> Result:
    return CliRunner().invoke(cli, ["train", "gan", *words])


@pytest.mark.parametrize("kind", ["codes", "enhancer"])
def test_the_folder_can_be_named_in_an_attack(data: str, tmp_path: Path, kind: str) -> None:
    result = run(data, "-o", str(tmp_path / "m"), "--steps", "2", "--batch", "4", "--kind", kind, "--factor", "2")
    assert result.exit_code == 0, result.output
    assert "after 2 steps" in result.stdout
    assert "on 12 images of d; samples in" in result.stdout
    assert stored_gan(str(tmp_path / "m")).trained_on == "12 images of d"
    assert (tmp_path / "m" / PICTURE).is_file()
    more = run(
        data, "-o", str(tmp_path / "m"), "--steps", "3", "--batch", "4", "--kind", kind, "--factor", "2", "--json"
    )
    answer = json.loads(more.stdout)
    assert (answer["kind"], answer["steps"], answer["paths"]["model"]) == (kind, 3, str(tmp_path / "m"))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--kind", "diffusion"), "Unknown kind of GAN 'diffusion'"),
        (("--factor", "3"), "cannot be reduced by the factor 3"),
        (("--side", "6", "--kind", "codes"), "sides of 8 to 512 pixels"),
    ],
)
def test_what_can_not_be_trained_is_refused(data: str, tmp_path: Path, options: tuple[str, ...], words: str) -> None:
    result = run(data, "-o", str(tmp_path / "m"), "--steps", "1", *options)
    assert result.exit_code == 2
    assert words in result.stderr
    assert not (tmp_path / "m").exists()
