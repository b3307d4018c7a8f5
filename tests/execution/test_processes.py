"""Workers that die take only their own case with them."""

from __future__ import annotations

import importlib
import operator
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from fedglass.audit.audit import Job, run
from fedglass.audit.simulated import Simulated
from fedglass.core.errors import UsageError
from fedglass.core.types import Training, Whitening
from fedglass.execution.executor import Callbacks, FailedJob, InProcess
from fedglass.execution.processes import Processes, executor_for
from fedglass.federation.client import Client
from fedglass.federation.federation import Federation
from fedglass.federation.views import ServerView
from fedglass.recipes import recipe

from ..processes import alive, wait_for

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
    result = run(job, tmp_path / "out", executor=Processes(2))
    status = {record.attack: record for record in result.searches}
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
        run(job, tmp_path, executor=Processes(2))
    assert len(run(job, tmp_path, executor=InProcess()).searches) == 2


def test_a_worker_that_dies_costs_its_own_job_only() -> None:
    heard: list[int] = []
    silent: Callbacks[int] = Callbacks(heard.append, lambda *way: None)
    found = dict(Processes(2).run(operator.neg, [1, 2], silent))  # type: ignore[arg-type] # dies of two arguments
    assert heard == [1, 2]
    assert all(isinstance(result, FailedJob) and "ended without a result" in result.reason for result in found.values())


def test_kept_workers_serve_one_run_after_another_and_end_with_the_context(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "who_works.py").write_text(
        "import os, signal\n"
        "def who(job, progress):\n    return os.getpid()\n"
        "def deadly(job, progress):\n    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    work = importlib.import_module("who_works")
    silent: Callbacks[int] = Callbacks(lambda job: None, lambda *way: None)
    with Processes(2).persistent() as team:
        first = {pid for _, pid in team.run(work.who, range(8), silent)}
        again = {pid for _, pid in team.run(work.who, range(8), silent)}
        assert len(first | again) <= 2, "nobody is hired twice"
        assert os.getpid() not in first
        next(team.run(work.who, range(8), silent))  # left in the middle
        assert all(isinstance(lost, FailedJob) for _, lost in team.run(work.deadly, range(3), silent))
        last = {pid for _, pid in team.run(work.who, range(8), silent)}
        assert 1 <= len(last) <= 2, "the dead are replaced"
    assert not any(Path(f"/proc/{pid}").exists() for pid in last)


BUSY = """
import operator, os, sys, time
from fedglass.execution.executor import Callbacks
from fedglass.execution.processes import Processes
import busy_forever
if __name__ == "__main__":
    list(Processes(2).run(busy_forever.work, [1, 2], Callbacks(lambda job: None, lambda *way: None)))
"""
WORK = """
import os, pathlib
def work(job, progress):
    pathlib.Path(f"started-{os.getpid()}").touch()
    while True:
        sum(range(10**6))
"""


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="processes are looked up in /proc")
def test_busy_workers_end_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    (tmp_path / "parent.py").write_text(BUSY)
    (tmp_path / "busy_forever.py").write_text(WORK)
    parent = subprocess.Popen([sys.executable, "parent.py"], cwd=tmp_path)
    try:
        wait_for(lambda: len(list(tmp_path.glob("started-*"))) == 2 or None)
        workers = [int(path.name.removeprefix("started-")) for path in tmp_path.glob("started-*")]
        assert all(map(alive, workers))
    finally:
        parent.kill()
        parent.wait()
    wait_for(lambda: True if not any(map(alive, workers)) else None)


def test_one_worker_is_this_process_and_none_is_refused() -> None:
    assert executor_for(1) == InProcess()
    assert executor_for(3) == Processes(workers=3)
    for make in (executor_for, Processes):
        with pytest.raises(UsageError, match="workers must be at least 1, got 0"):
            make(0)
