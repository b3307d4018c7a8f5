"""`fedglass train` on the command line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result
from safetensors.torch import load_file

Run = Callable[..., Result]
OPTIONS = ["--model", "lenet", "--data", "photos", "--size", "16", "--device", "cpu", "--batch", "8", "--every", "1"]


def test_a_checkpoint_is_made_and_starts_an_audit(
    fedglass: Run, tmp_path: Path, write_plan: Callable[..., Path]
) -> None:
    out = tmp_path / "stages"
    found = fedglass("train", *OPTIONS, "--at", "0.1", "--epochs", "30", "--lr", "0.01", "-o", out)
    assert found.exit_code == 0, found.output
    assert "0.1 %: " in found.output
    assert "lenet (default) on 19 images of photos, judged by 5 of 24 held out" in found.output
    plan = write_plan(('init = "uniform"', 'init = "file:stages/acc0.1.safetensors"'))
    assert fedglass("check", plan).exit_code == 0


def test_the_same_command_is_not_repeated(fedglass: Run, tmp_path: Path) -> None:
    request = ["train", *OPTIONS, "--at", "99", "--epochs", "1", "-o", tmp_path]
    first = fedglass(*request)
    assert first.exit_code == 3
    assert "99 % not reached within 1 epochs" in first.output
    kept = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    assert fedglass(*request).exit_code == 3
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == kept
    assert set(kept) == {"best.safetensors", "training.safetensors"}


def test_a_plan_says_what_to_train(fedglass: Run, tmp_path: Path, write_plan: Callable[..., Path]) -> None:
    plan = write_plan()
    found = fedglass(
        "train", plan, "--at", "99", "--epochs", "1", "--batch", "8", "--device", "cpu", "-o", tmp_path / "out"
    )
    assert "lenet (uniform) on 19 images of photos" in found.output
    assert load_file(tmp_path / "out" / "best.safetensors")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "What is to be trained? Give a plan, or --data and --model"),
        (["--data", "photos"], "Give a plan, or --model"),
        (["--model", "lenett", "--data", "photos"], "Unknown model 'lenett': did you mean 'lenet'?"),
        (["--model", "lenet", "--data", "photoss"], "Unknown dataset 'photoss'"),
        (["--model", "lenet", "--data", "photos", "--init", "normale"], "Unknown initialisation"),
        (["--model", "lenet", "--data", "photos", "--at", "0"], "above 0 and at most 100"),
        (["--model", "lenet", "--data", "photos", "--at", "half"], "--at must be test accuracies"),
        (["--model", "lenet", "--data", "photos", "--lr", "-1"], "lr must be a positive number"),
        (["none.toml"], "none.toml"),
    ],
)
def test_bad_requests_are_refused_in_words(fedglass: Run, tmp_path: Path, arguments: list[str], words: str) -> None:
    found = fedglass("train", *arguments, "-o", tmp_path / "out")
    assert found.exit_code == 2
    assert words in found.output
    assert not (tmp_path / "out").exists()


def test_another_training_is_refused(fedglass: Run, tmp_path: Path) -> None:
    request = ["train", *OPTIONS, "--at", "99", "--epochs", "1", "-o", tmp_path]
    fedglass(*request)
    found = fedglass(*request, "--lr", "0.02")
    assert found.exit_code == 2
    assert "holds another training" in found.output
