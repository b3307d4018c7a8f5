"""One audit at a time in a directory, and none shut out for ever."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from fedglass.audit.audit import Job, run
from fedglass.core.errors import UsageError
from fedglass.federation.views import ServerView
from fedglass.verdict.directory import alone

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="there is no flock")

HOLD = """
import sys
from pathlib import Path
from fedglass.verdict.directory import alone
with alone(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_second_audit_is_refused_and_writes_nothing(make_job: Callable[..., Job], tmp_path: Path) -> None:
    with alone(tmp_path), pytest.raises(UsageError, match=r"Another command is running in .* choose another directory"):
        run(make_job(), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [".lock"]
    job = make_job(views=(ServerView(0),), iterations=1)
    assert len(run(job, tmp_path).records) == len(job.cases)


def test_an_error_lets_go(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), alone(tmp_path):
        raise ZeroDivisionError
    with alone(tmp_path):
        pass


def test_a_killed_process_lets_go(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(UsageError, match="Another command"), alone(tmp_path):
            pass
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        with alone(tmp_path):
            pass
