"""A synthetic audit directory with small pictures, as an audit leaves it behind."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from fedglass.bounds.success import Game
from fedglass.verdict.directory import RecordFile, claim
from fedglass.verdict.doubts import DoubtKind, doubt
from fedglass.verdict.gate import Gate
from fedglass.verdict.records import Certificate, KnownFact, Picture, Record
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
DOUBTS = {
    "idlg": doubt(DoubtKind.METRICS_DISAGREE, how="PSNR and SSIM rank the images in opposite order"),
    "inverting_gradients": doubt(DoubtKind.ORACLE_USED, facts=["the true labels"]),
}
FACTS = {
    "input shape": "3 x 32 x 32",
    "classes": "10",
    "examples": "4 examples stand behind the message",
    "pixel bounds": "0 to 1",
    "training": "one step of SGD with learning rate 0.1 (FedSGD)",
    "labels": "unknown",
}
KNOWS = {name: KnownFact(text=text) for name, text in FACTS.items()}


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
        "doubts": [DOUBTS[attack]] if attack in DOUBTS else [],
        "knows": {**KNOWS, "labels": KnownFact(text="the true labels", oracle=True)} if oracle else KNOWS,
        "oracle": oracle,
        "seconds": 12.5,
        "iterations": 1000,
        "peak_mib": 310.0,
        "utility": {"test accuracy": 0.61 + 0.1 * client},
        "pictures": pictures,
        "versions": {"fedglass": "0.1.0", "torch": "2.13.0", "python": "3.11"},
    }
    return Record(key=key, attack=attack, **{**fields, **changes})


def evidence(kind: str, client: int = 0, **changes: Any) -> Record:
    """One record of a game or a certificate."""
    fields: dict[str, Any] = {
        "key": f"{kind}-{client}",
        "attack": "singling_out" if kind == "game" else kind,
        "attack_repr": f"{kind}()",
        "view": f"the server sees client {client}'s update",
        "round": 1,
        "client": str(client),
        "repeat": 0,
        "seed": 7,
        "status": "done",
        "knows": KNOWS,
        "seconds": 3.0,
    }
    return Record(**{"kind": kind, **fields, **changes})


def game(top1: float = 0.90625, **changes: Any) -> Game:
    """A game of 32 records among 1,000 candidates, with a control that names none."""
    chance = np.random.default_rng(3)
    wins = round(32 * top1)
    ranks = [0.001] * wins + [0.25] * (32 - wins)
    scores = [0.2 + 0.3 * float(chance.random()) if p == 0.001 else 0.05 for p in ranks]
    fields: dict[str, Any] = {
        "records": 32,
        "candidates": 1000,
        "top1": top1,
        "low": max(0.0, top1 - 0.15),
        "high": min(1.0, top1 + 0.08),
        "control": "held_out",
        "control_top1": 0.0,
        "control_low": 0.0,
        "control_high": 0.1,
        "rank_p": ranks,
        "control_rank_p": [0.5] * 32,
        "statistic": "cosine after projection",
        "directions": 200,
        "public": 400,
        "scores": scores,
        "control_scores": chance.normal(0.0, 0.04, 32).tolist(),
        "candidate_quantiles": np.quantile(chance.normal(0.0, 0.04, 1000), np.linspace(0, 1, 21)).tolist(),
    }
    return Game(**{**fields, **changes})


def certificate(**changes: Any) -> Certificate:
    """A certificate of Gaussian noise at mu = 1, with all that one may hold."""
    fields: dict[str, Any] = {
        "method": "record",
        "accounting": "gaussian",
        "success": [0.0035, 0.018298, 0.009],
        "mu": [0.4, 1.0, 0.72],
        "rounds": 1,
        "planned": 4,
        "success_planned": 0.045,
        "advantage": 0.382925,
        "epsilon": 4.3772,
        "delta": 1e-5,
        "client_mu": 2.0,
        "adversary": {"2": 0.69, "10": 0.34, "100": 0.07, "1000": 0.0166},
        "expected_psnr": 11.15,
        "assumptions": {"noise": "tested", "training": "construction", "unpredictable noise": "declared"},
    }
    return Certificate(**{**fields, **changes})


def build(directory: Path, attacks: tuple[str, ...] = tuple(NOISE), gate: Gate | None = None) -> Path:
    """Three attacks, two clients, two repeats each; nothing bounds what the messages tell."""
    claim(directory, "0123456789abcdef0123456789abcdef")
    (directory / "plan.toml").write_text(PLAN)
    file = RecordFile(directory / "records.jsonl")
    for client in range(2):
        file.append(evidence("certificate", client, doubts=[doubt(DoubtKind.NO_NOISE)]))
    for attack in attacks:
        for client in range(2):
            for repeat in range(2):
                file.append(case(directory, attack, client, repeat))
    summarise(file.read(), gate or Gate()).write(directory / "summary.json")
    return directory


def build_evidence(directory: Path, *records: Record, gate: Gate | None = None) -> Path:
    """An audit of these records alone."""
    claim(directory, "0123456789abcdef0123456789abcdef")
    file = RecordFile(directory / "records.jsonl")
    for record in records:
        file.append(record)
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


@pytest.fixture
def make_evidence() -> Callable[..., Record]:
    return evidence


@pytest.fixture
def make_game() -> Callable[..., Game]:
    return game


@pytest.fixture
def make_certificate() -> Callable[..., Certificate]:
    return certificate


@pytest.fixture
def build_evidence_audit() -> Callable[..., Path]:
    return build_evidence
