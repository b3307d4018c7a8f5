"""Canaries in a training with Opacus itself; skipped where it is not installed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from torch import nn
from torch.nn import functional as F

import fedglass
from fedglass.cli.main import cli

opacus = pytest.importorskip("opacus")
pytestmark = pytest.mark.filterwarnings("ignore")
EXAMPLES = 12


def recorded(folder: Path, *, poisson: bool, change: Callable[[Any], None] = lambda optimiser: None) -> None:
    """Train one epoch of three batches with noise multiplier 1."""
    torch.manual_seed(0)
    data = torch.utils.data.TensorDataset(torch.rand(EXAMPLES, 1, 8, 8), torch.arange(EXAMPLES) % 5)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 20), nn.Tanh(), nn.Linear(20, 5))
    private, optimiser, loader = opacus.PrivacyEngine().make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        data_loader=torch.utils.data.DataLoader(data, batch_size=4 if poisson else EXAMPLES),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        poisson_sampling=poisson,
    )
    change(optimiser)
    with fedglass.recording(folder, private, client="a", round=0, canaries=500, whitening=((0.0,), (1.0,))):
        for images, labels in loader:
            optimiser.zero_grad()
            F.cross_entropy(private(images), labels).backward()
            optimiser.step()


def audit(folder: Path, *options: object) -> dict[str, Any]:
    answer = CliRunner().invoke(cli, ["epsilon", str(folder), *map(str, options), "--json"])
    assert answer.exit_code in (0, 1, 3), answer.output
    found: dict[str, Any] = json.loads(answer.stdout)["audits"][0]
    return found


def test_an_honest_training_is_consistent(tmp_path: Path) -> None:
    recorded(tmp_path / "bundle", poisson=False)
    found = audit(tmp_path / "bundle", "--declared", 4.38, "--gaussian")

    assert found["finding"] == "consistent"
    assert 1 < found["lower"] < 4.38


def test_poisson_samples_hold_canaries_at_their_rate(tmp_path: Path) -> None:
    recorded(tmp_path / "bundle", poisson=True)
    found = audit(tmp_path / "bundle", "--declared", 4.0)

    assert found["finding"] == "consistent"
    assert found["lower"] < 4.0


def test_noise_that_is_switched_off_is_refuted(tmp_path: Path) -> None:
    def silence(optimiser: Any) -> None:
        optimiser.noise_multiplier = 0.0

    recorded(tmp_path / "bundle", poisson=False, change=silence)
    found = audit(tmp_path / "bundle", "--declared", 4.38, "--gaussian")

    assert found["finding"] == "not as declared"
