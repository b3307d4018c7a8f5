"""Where workers come from, seen from commands and scripts of their own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from fedglass.verdict.directory import RECORDS, RecordFile

COMMAND = """
from fedglass.cli.main import main

if __name__ == "__main__":
    main()
"""

OWN_MODEL = """
import torch

class Own(torch.nn.Module):
    def __init__(self, shape, classes):
        super().__init__()
        self.fc = torch.nn.Linear(shape[0] * shape[1] * shape[2], classes)

    def forward(self, x):
        return self.fc(x.flatten(1))
"""

PLAN = """
[federation]
data = "photos"
size = 8
clients = 2
examples = 1
model = "model_beside_the_plan:Own"
training.lr = 0.1
[adversary]
client = "all"
[[attacks]]
name = "inverting_gradients"
iterations = 2
[metrics]
names = ["psnr"]
[gate]
threshold = 99.0
"""

WORK = """
import sys

def imported(job, progress):
    return job in sys.modules
"""

ASK = """
import sys

from fedglass.execution.fork_server import start_fork_server, start_method

if __name__ == "__main__":
    start_fork_server("work_to_do")
    assert "torch" not in sys.modules, "the server is started before torch is imported here"

    from fedglass.execution.executor import Callbacks
    from fedglass.execution.processes import Processes
    from work_to_do import imported

    watch = Callbacks(lambda job: None, lambda job, done, total: None)
    print(start_method().get_start_method())
    print(sorted(Processes(2).run(imported, ["torch", "fedglass.recipes"], watch)))
"""

UNGUARDED = """
from fedglass.execution.executor import Callbacks
from fedglass.execution.processes import Processes
from work_to_do import imported

found = Processes(2).run(imported, ["torch", "numpy"], Callbacks(lambda job: None, lambda job, done, total: None))
print([result.reason for job, result in found])
"""


def python(folder: Path, script: str, *arguments: object, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run a script that lies in the folder."""
    path = folder / "script.py"
    path.write_text(script)
    command = [sys.executable, str(path), *map(str, arguments)]
    return subprocess.run(command, cwd=cwd or folder, capture_output=True, text=True, timeout=300, check=False)


def test_the_server_has_imported_what_workers_need(tmp_path: Path) -> None:
    (tmp_path / "work_to_do.py").write_text(WORK)
    asked = python(tmp_path, ASK)
    assert asked.stderr == ""
    method, found = asked.stdout.splitlines()
    assert method == ("spawn" if sys.platform in ("win32", "darwin") else "forkserver")
    if method == "forkserver":
        assert found == "[('fedglass.recipes', True), ('torch', True)]"


def test_code_from_a_named_folder_reaches_the_workers(tmp_path: Path) -> None:
    place, commands = tmp_path / "plans", tmp_path / "commands"
    place.mkdir()
    commands.mkdir()
    (place / "model_beside_the_plan.py").write_text(OWN_MODEL)
    (place / "plan.toml").write_text(PLAN)
    # Workers look where the command looks, which is not the current folder first.
    (place / "queue.py").write_text("raise RuntimeError('not the module of the standard library')")
    options = ("--code", ".", "-o", "out", "--workers", 2, "--device", "cpu")
    done = python(commands, COMMAND, "audit", "plan.toml", *options, cwd=place)
    assert "This plan runs code outside fedglass: model_beside_the_plan:Own (model)." in done.stderr
    assert "Error" not in done.stderr
    assert {record.status for record in RecordFile(place / "out" / RECORDS).read()} == {"done"}


def test_a_script_without_a_guard_is_told_so(tmp_path: Path) -> None:
    (tmp_path / "work_to_do.py").write_text(WORK)
    done = python(tmp_path, UNGUARDED)
    assert 'keep what it does under `if __name__ == "__main__":`, or set workers to 1' in done.stderr
    assert "ended without a result (exit code 1; see its output above)" in done.stdout
