"""Workers that die take only their own case with them."""

from __future__ import annotations

import importlib
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from fedglass.audit.audit import Job, run
from fedglass.audit.simulated import Simulated
from fedglass.audit.workers import Throttled
from fedglass.core.errors import UsageError
from fedglass.core.types import Training, Whitening
from fedglass.recipes.catalogue import recipe
from fedglass.rounds.client import Client
from fedglass.rounds.federation import Federation
from fedglass.rounds.views.server import ServerView

DEADLY = '''
import os, signal
from dataclasses import dataclass

@dataclass(frozen=True)
class Deadly:
    """An attack that memory runs out for."""

    def run(self, observation, seed=0, progress=None):
        os.kill(os.getpid(), signal.SIGKILL)

    def energy_of(self, *arguments):
        return 0.0
'''


def test_a_killed_worker_is_one_failed_record(
    make_job: Callable[..., Job], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "deadly_attack_part.py").write_text(DEADLY)
    monkeypatch.syspath_prepend(str(tmp_path))
    deadly = importlib.import_module("deadly_attack_part").Deadly()
    attacks: dict[str, Any] = {"deadly": deadly, "ig": recipe("inverting_gradients", iterations=3)}
    job = make_job(views=(ServerView(0),), attacks=attacks)
    result = run(job, tmp_path / "out", workers=2)
    status = {record.attack: record for record in result.records}
    assert status["ig"].status == "done"
    assert status["deadly"].status == "failed"
    assert f"exit code {-signal.SIGKILL}" in (status["deadly"].error or "")
    assert result.verdict.state in ("incomplete", "leak")


def test_what_can_not_be_sent_is_said_so(tmp_path: Path) -> None:
    class Local(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = torch.nn.Linear(4, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.fc(x.flatten(1))  # type: ignore[no-any-return]  # a module's call is untyped

    client = Client("a", torch.full((1, 1, 2, 2), 0.5), torch.tensor([1]))
    federation = Federation(Local(), [client], Training(lr=0.1), 2, Whitening((0.0,), (1.0,)))
    attacks = {name: recipe(name, iterations=2) for name in ("idlg", "dlg")}
    job = Job([Simulated(federation)], attacks, metrics=("psnr",))
    with pytest.raises(UsageError, match=r"importable module, or set workers to 1"):
        run(job, tmp_path, workers=2)
    assert len(run(job, tmp_path, workers=1).records) == 2


def test_progress_is_throttled_but_the_end_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("fedglass.audit.workers.time.monotonic", lambda: now[0])
    said: list[tuple[int, int]] = []
    say = Throttled(lambda done, total: said.append((done, total)))
    for done in range(10):
        say(done, 10)
        now[0] += 0.125
    say(10, 10)
    assert said == [(0, 10), (2, 10), (4, 10), (6, 10), (8, 10), (10, 10)]
