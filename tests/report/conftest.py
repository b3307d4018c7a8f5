"""A synthetic audit directory with small pictures, as an audit leaves it behind."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from fedglass.ledger.records import Flag, Picture, Record, RecordFile, claim
from fedglass.verdict.gate import Gate
from fedglass.verdict.summary import summarise

PLAN = """[federation]
model = "lenet"
data = "photos"
clients = 2

[[attack]]
name = "inverting_gradients"
iterations = 1000

[gate]
metric = "psnr"
threshold = 20.0
"""
NOISE = {"inverting_gradients": 0.03, "idlg": 0.09, "dlg": 0.3}
FLAGS = {
    "dlg": Flag(
        name="optimiser failed",
        severity="serious",
        text="The true data explains the message better than what the attack found: it stopped too early, so "
        "that absence of leakage is not shown. Try more iterations or restarts.",
    ),
    "idlg": Flag(name="metrics disagree", severity="warning", text="PSNR and SSIM rank the images differently."),
    "inverting_gradients": Flag(
        name="oracle knowledge used", severity="info", text="The attack was given the true labels."
    ),
}
KNOWS = {
    "input shape": "3 x 32 x 32",
    "classes": "10",
    "examples": "4 examples stand behind the message",
    "pixel bounds": "0 to 1",
    "training": "one step of SGD with learning rate 0.1 (FedSGD)",
    "labels": "unknown",
}


def _original(number: int) -> NDArray[np.float64]:
    """A coloured disc on a gradient, another one for every number."""
    y, x = np.mgrid[0:32, 0:32] / 31
    chance = np.random.default_rng(number)
    ground, disc, centre = chance.random(3), chance.random(3), 0.3 + 0.4 * chance.random(2)
    image = ground * (0.3 + 0.7 * np.stack([x, y, 1 - x], axis=-1))
    inside = (x - centre[0]) ** 2 + (y - centre[1]) ** 2 < 0.06
    image[inside] = disc
    return np.asarray(image, dtype=np.float64)


def _save(path: Path, image: NDArray[np.float64]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray((image.clip(0, 1) * 255).astype(np.uint8)).save(path)


def _pictures(
    directory: Path, key: str, client: int, noise: float, seed: int
) -> tuple[list[Picture], dict[str, list[float | None]]]:
    pictures, psnr, ssim = [], [], []
    for i in range(4):
        original = _original(10 * client + i)
        level = noise * (1 + 0.5 * i) * (1 + 0.3 * (seed % 7))
        guess = original + level * np.random.default_rng(seed + i).standard_normal(original.shape)
        mse = float(((guess.clip(0, 1) - original) ** 2).mean())
        psnr.append(-10 * np.log10(mse))
        ssim.append(1 / (1 + 40 * mse))
        names = [f"pictures/{key}/{kind}-{i}.png" for kind in ("original", "reconstruction")]
        _save(directory / names[0], original)
        _save(directory / names[1], guess)
        pictures.append(Picture(original=names[0], reconstruction=names[1], psnr=psnr[-1], ssim=ssim[-1], label=str(i)))
    return pictures, {"psnr": psnr, "ssim": ssim}


def case(directory: Path, attack: str, client: int, repeat: int, **changes: Any) -> Record:
    """One finished record with its pictures."""
    noise, oracle = NOISE.get(attack, 0.05), attack == "inverting_gradients"
    key = changes.pop("key", f"{attack}-{client}-{repeat}")
    pictures, metrics = _pictures(directory, key, client, noise, seed=100 * client + 10 * repeat)
    curve = [0.8 * np.exp(-i / 12) + noise**2 for i in range(60)]
    fields: dict[str, Any] = {
        "attack_repr": f"Attack(labels=SignRule(), stages=(Stage(solver=Adam(lr=0.1)),), name={attack!r})",
        "view": f"the server sees client {client}'s update",
        "round": 1,
        "client": str(client),
        "repeat": repeat,
        "seed": 7 + repeat,
        "status": "done",
        "metrics": metrics,
        "skipped_metrics": {"lpips": "no weights; set FEDGLASS_LPIPS to a file that holds them."},
        "labels_true": [0, 1, 2, 3],
        "labels_recovered": [0, 1, 2, 2],
        "label_errors": 1,
        "energy": curve[-1],
        "energy_truth": 0.004,
        "energy_blind": 0.75,
        "trace": [c * (1 + 0.1 * repeat) for c in curve],
        "flags": [FLAGS[attack]] if attack in FLAGS else [],
        "absence": None if attack == "dlg" else "a defence hides it",
        "replay": "replayed on the true data, the declared training gives the message up to 0.0001",
        "looks": ["from start 2: energy 0.01, recovered 0"],
        "knows": {**KNOWS, "labels": "the true labels (oracle)"} if oracle else KNOWS,
        "oracle": oracle,
        "seconds": 12.5,
        "iterations": 1000,
        "peak_mib": 310.0,
        "utility": {"test accuracy": 0.61 + 0.1 * client},
        "pictures": pictures,
        "versions": {"fedglass": "0.1.0", "torch": "2.13.0", "python": "3.11"},
    }
    return Record(key=key, attack=attack, **{**fields, **changes})


def build(directory: Path, attacks: tuple[str, ...] = tuple(NOISE), gate: Gate | None = None) -> Path:
    """Three attacks, two clients, two repeats each."""
    claim(directory, "0123456789abcdef0123456789abcdef")
    (directory / "plan.toml").write_text(PLAN)
    file = RecordFile(directory / "records.jsonl")
    for attack in attacks:
        for client in range(2):
            for repeat in range(2):
                file.append(case(directory, attack, client, repeat))
    summarise(file.read(), gate or Gate()).write(directory / "summary.json")
    return directory


@pytest.fixture
def audit_directory(tmp_path: Path) -> Path:
    return build(tmp_path / "audit")


@pytest.fixture
def make_case() -> Callable[..., Record]:
    return case


@pytest.fixture
def build_audit() -> Callable[..., Path]:
    return build
