"""Jobs of submitit, in its local executor and on a SLURM that shell scripts play."""

from __future__ import annotations

import importlib
import importlib.util
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from fedglass.audit.audit import Job, run
from fedglass.core.errors import UsageError
from fedglass.execution.executor import Callbacks, FailedJob, InProcess
from fedglass.execution.slurm import OnSlurm
from fedglass.verdict.directory import RECORDS, RecordFile

needs_submitit = pytest.mark.skipif(importlib.util.find_spec("submitit") is None, reason="submitit is not installed")

OFFICE = """
import os, signal, time
import torch
from pathlib import Path

def halved(job, progress):
    return job / 2, torch.get_num_threads()

def told(job, progress):
    return os.environ.get(job)

def deadly_once(job, progress):
    mark = Path(job)
    if not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return "survived"

def faulty(job, progress):
    raise ValueError("a fault of this work")

def slow(job, progress):
    place = Path(job)
    with place.open("a") as file:
        file.write("began\\n")
    while not place.with_suffix(".go").exists():
        time.sleep(0.05)
    return "done"
"""

SBATCH = """#!/bin/bash
# Runs the script at once, in the background, under a number of its own.
number=$(( $(ls "$FAKE_SLURM" | grep -c state) + 1001 ))
echo RUNNING > "$FAKE_SLURM/$number.state"
(
  SLURM_JOB_ID=$number SLURM_NTASKS=1 SLURM_JOB_NUM_NODES=1 SLURM_NODEID=0 SLURM_PROCID=0 SLURM_LOCALID=0 \\
    SLURM_JOB_NODELIST=here bash "$1" > "$FAKE_SLURM/$number.log" 2>&1 &
  echo $! > "$FAKE_SLURM/$number.pid"
  wait $!
  code=$?
  if [ $code = 0 ]; then echo COMPLETED; else echo FAILED; fi > "$FAKE_SLURM/$number.state"
) > /dev/null 2>&1 &
cat "$1" > "$FAKE_SLURM/$number.script"
echo "Submitted batch job $number"
"""
SRUN = """#!/bin/bash
# Its own options go first, each with a value but --unbuffered.
while [[ $1 == --* ]]; do if [[ $1 == --unbuffered ]]; then shift; else shift 2; fi; done
exec "$@"
"""
SACCT = """#!/bin/bash
echo "JobID|State|NodeList"
for file in "$FAKE_SLURM"/*.state; do echo "$(basename "$file" .state)|$(cat "$file")|here"; done
"""
SCANCEL = """#!/bin/bash
echo CANCELLED > "$FAKE_SLURM/$1.state"
touch "$FAKE_SLURM/$1.cancelled"
pkill -P "$(cat "$FAKE_SLURM/$1.pid")" || true
"""


@pytest.fixture
def office(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """A module whose functions workers find by name."""
    (tmp_path / "slurm_office.py").write_text(OFFICE)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield importlib.import_module("slurm_office")
    del sys.modules["slurm_office"]


@pytest.fixture
def fake_slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """SLURM's commands, found first."""
    place = tmp_path / "slurm"
    (place / "bin").mkdir(parents=True)
    for name, text in {"sbatch": SBATCH, "srun": SRUN, "sacct": SACCT, "scancel": SCANCEL}.items():
        (place / "bin" / name).write_text(text)
        (place / "bin" / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{place / 'bin'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("FAKE_SLURM", str(place))
    return place


@pytest.fixture(params=["local", "slurm"])
def executor(request: pytest.FixtureRequest, tmp_path: Path, fake_slurm: Path) -> OnSlurm:
    return OnSlurm(workers=2, folder=str(tmp_path / "jobs"), system=request.param)


def quiet() -> Callbacks[Any]:
    return Callbacks(lambda job: None, lambda job, done, total: None)


@needs_submitit
def test_every_job_comes_back_once_and_leaves_nothing(executor: OnSlurm, office: ModuleType, tmp_path: Path) -> None:
    jobs = [1.0, 2.0, 3.0]
    assert sorted(executor.run(office.halved, jobs, quiet())) == [(job, (job / 2, 1)) for job in jobs]
    assert list((tmp_path / "jobs").iterdir()) == []
    assert stat.S_IMODE((tmp_path / "jobs").stat().st_mode) == 0o700
    assert list(executor.run(office.halved, [], quiet())) == []


@needs_submitit
def test_workers_are_told_our_variables(executor: OnSlurm, office: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDGLASS_TEST_OF_SLURM", "calm")
    assert dict(executor.run(office.told, ["FEDGLASS_TEST_OF_SLURM"], quiet())) == {"FEDGLASS_TEST_OF_SLURM": "calm"}


@needs_submitit
def test_a_killed_job_is_handed_in_again_and_a_fault_is_not(
    executor: OnSlurm, office: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("submitit.core.core.Job._results_timeout_s", 0)  # for file systems that are slow to tell
    mark = str(tmp_path / "mark")
    assert dict(executor.run(office.deadly_once, [mark], quiet())) == {mark: "survived"}
    ((_, lost),) = executor.run(office.faulty, [1], quiet())
    assert isinstance(lost, FailedJob)
    assert "ValueError: a fault of this work" in lost.reason


@needs_submitit
def test_a_job_that_a_killed_caller_left_is_taken_up(office: ModuleType, tmp_path: Path, fake_slurm: Path) -> None:
    executor, place = OnSlurm(workers=2, folder=str(tmp_path / "jobs")), tmp_path / "errand"
    script = tmp_path / "caller.py"
    script.write_text(
        "from fedglass.execution.executor import Callbacks\n"
        "from fedglass.execution.slurm import OnSlurm\n"
        "import slurm_office\n"
        "watch = Callbacks(lambda job: None, lambda *way: None)\n"
        f"list({executor!r}.run(slurm_office.slow, [{str(place)!r}], watch))\n"
    )
    caller = subprocess.Popen([sys.executable, str(script)])
    deadline = time.monotonic() + 120
    while not place.exists() and caller.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    caller.send_signal(signal.SIGKILL)
    caller.wait()
    place.with_suffix(".go").touch()
    assert dict(executor.run(office.slow, [str(place)], quiet())) == {str(place): "done"}
    assert place.read_text() == "began\n", "it was not begun a second time"
    assert len(list(fake_slurm.glob("*.script"))) == 1


@needs_submitit
def test_what_runs_is_cancelled_when_nobody_waits(office: ModuleType, tmp_path: Path, fake_slurm: Path) -> None:
    executor = OnSlurm(
        workers=2, partition="long", account="lab", minutes=7, memory_gb=3, gpus=1, folder=str(tmp_path / "jobs")
    )
    (tmp_path / "first.go").touch()
    jobs = [str(tmp_path / "first"), str(tmp_path / "second")]
    found = executor.run(office.slow, jobs, quiet())
    assert next(found) == (jobs[0], "done")
    found.close()
    assert [file.stem for file in fake_slurm.glob("*.cancelled")] == ["1002"]
    asked = (fake_slurm / "1001.script").read_text()
    for line in ("partition=long", "account=lab", "time=7", "mem=3GB", "gpus-per-node=1", "cpus-per-task=1"):
        assert f"#SBATCH --{line}\n" in asked


@needs_submitit
def test_an_audit_has_the_same_records(make_job: Callable[..., Job], tmp_path: Path) -> None:
    job = make_job()
    executor = OnSlurm(workers=2, folder=str(tmp_path / "jobs"), system="local")
    run(job, tmp_path / "there", executor=executor)
    run(job, tmp_path / "here", executor=InProcess())
    found = [
        {
            r.key: r.model_dump(exclude={"seconds", "peak_mib", "finished"})
            for r in RecordFile(place / RECORDS).history()
        }
        for place in (tmp_path / "there", tmp_path / "here")
    ]
    assert found[0] == found[1]
    attacks = [record["attack"] for record in found[0].values() if record["kind"] == "attack"]
    assert len(attacks) - attacks.count("exact") == 4  # every audit also plays exact attacks


@needs_submitit
def test_a_folder_that_others_can_write_to_is_refused(office: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "jobs").mkdir(mode=0o755)
    executor = OnSlurm(folder=str(tmp_path / "jobs"), system="local")
    with pytest.raises(UsageError, match="closed to others, since what lies there is run: chmod 700"):
        list(executor.run(office.halved, [1.0], quiet()))


@needs_submitit
def test_without_sbatch_that_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match="sbatch is not found here"):
        OnSlurm()


def test_without_submitit_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"not installed: pip install fedglass\[slurm\]"):
        OnSlurm()
