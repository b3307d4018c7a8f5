"""Where cases run is said on the command line; what can not be is refused in one sentence, before anything runs."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from fedglass.cli import options
from fedglass.cli.options import ExecutorOptions
from fedglass.core.errors import UsageError
from fedglass.execution.fork_server import cores

Run = Callable[..., Result]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--executor", "rya"), "Unknown executor 'rya': did you mean 'ray'? Known: processes, ray, slurm."),
        (("--executor", "ray"), "needs the package ray, which is not installed: pip install fedglass[ray]."),
        (("--executor", "slurm"), "needs the package submitit, which is not installed: pip install fedglass[slurm]."),
        (("--executor", "ray", "-x", "adress=a:1"), "Unknown option 'adress': did you mean 'address'?"),
        (("--executor", "ray", "-x", "patience=0"), "a patience above 0 s, got workers=0, gpus=0, patience=0."),
        (("--executor", "slurm", "-x", "minutes=soon"), "--executor-option minutes must be a number, got 'soon'."),
        (("--executor", "slurm", "-x", "system=cloud"), "system must be one of slurm, local, got 'cloud'."),
        (("--executor", "slurm", "-x", "minutes=0"), "at least 1 of workers, minutes and memory_gb, got workers=16"),
        (("-x", "partition"), "--executor-option must be KEY=VALUE, got 'partition'."),
        (("-x", "partition=long"), "Executor 'processes': Unknown option 'partition'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_what_is_wrong_is_said_in_a_sentence(
    fedglass: Run,
    write_plan: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: tuple[str, ...],
    said: str,
) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *more: None if name in ("ray", "submitit") else found(name, *more)
    )
    refused = fedglass("audit", write_plan(), "-o", tmp_path / "out", *options)
    assert refused.exit_code == 2
    assert said in refused.output
    assert refused.output.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_processes_are_what_runs_unless_told_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    assert repr(ExecutorOptions(workers=1).executor()) == "InProcess()"
    assert repr(ExecutorOptions(workers=3).executor()) == "Processes(workers=3)"
    assert ExecutorOptions().count() == cores()
    monkeypatch.setattr(options, "cores", lambda: 16)
    assert repr(ExecutorOptions().executor(shared=True)) == "Processes(workers=4)", "small cases share a GPU"
    assert repr(ExecutorOptions(workers=1).executor(shared=True)) == "InProcess()"


def test_an_executor_of_ones_own_is_named_like_any_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_executor.py").write_text(
        "from dataclasses import dataclass\n"
        "from fedglass.execution.executor import InProcess\n"
        "@dataclass(frozen=True)\n"
        "class Own:\n"
        "    queue: str = 'short'\n"
        "    gpus: int = 0\n"
        "    def run(self, work, jobs, watch):\n"
        "        yield from InProcess().run(work, jobs, watch)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    own = ExecutorOptions("own_executor:Own", options=("queue=7",)).executor(shared=True)
    assert repr(own) == "Own(queue='7', gpus=1)"
    with pytest.raises(UsageError, match="Unknown option 'workers'"):
        ExecutorOptions("own_executor:Own", workers=3).executor()
