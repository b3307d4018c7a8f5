"""Commands run in this process, and a plan that takes a second."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

SMALL = """
[federation]
data = "photos"
size = 16
clients = 2
examples = 1
model = "lenet"
init = "uniform"
training.lr = 0.1
[adversary]
client = "all"
[[attacks]]
name = "inverting_gradients"
iterations = 3
[metrics]
names = ["psnr", "ssim"]
[gate]
threshold = 99.0
inconclusive_fails = false
"""
LEAKING = ("iterations = 3", "iterations = 120"), ("99.0", "15.0")

Run = Callable[..., Result]


@pytest.fixture
def leaking() -> tuple[tuple[str, str], ...]:
    """Changes of the small plan with which the attack recovers both images."""
    return LEAKING


@pytest.fixture
def write_plan(tmp_path: Path) -> Callable[..., Path]:
    """A plan on disk: the small one, with some of its text replaced."""

    def write(*changes: tuple[str, str], text: str = SMALL) -> Path:
        for old, new in changes:
            assert old in text, old
            text = text.replace(old, new)
        path = tmp_path / "plan.toml"
        path.write_text(text)
        return path

    return write
