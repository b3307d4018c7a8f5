"""A cluster that is there already is joined by address and token; what is wrong with it is one sentence, soon."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from ...processes import alive, descendants, wait_for
from .conftest import by_key, finish

Start = Callable[..., "subprocess.Popen[str]"]
TOKEN = "5f" * 32
PLAN = """
effort = "quick"
[federation]
data = "photos"
size = 16
clients = 3
examples = 1
model = "lenet"
init = "uniform"
training.lr = 0.1
[adversary]
client = "all"
[[attacks]]
name = "idlg"
iterations = 2
[metrics]
names = ["psnr"]
[gate]
metric = "psnr"
threshold = 99.0
inconclusive_fails = false
"""


@dataclass(frozen=True)
class Head:
    address: str
    process: int


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    path = tmp_path / "plan.toml"
    path.write_text(PLAN)
    return path


@pytest.fixture
def head(environment: dict[str, str]) -> Iterator[Head]:
    """A cluster of one node, as its owner starts it: on loopback, with a token, in a folder of its own."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    place = Path(tempfile.mkdtemp(prefix="head-"))  # short: the names of sockets are limited
    told = {
        **environment,
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": TOKEN,
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_TMPDIR": str(place),
    }
    options = ["--head", "--block", f"--port={port}", "--node-ip-address=127.0.0.1", "--num-cpus=2"]
    ray = Path(sys.executable).with_name("ray")
    command = [str(ray), "start", *options, "--include-dashboard=false", f"--temp-dir={place}"]
    quiet = subprocess.DEVNULL
    process = subprocess.Popen(command, env=told, stdout=quiet, stderr=quiet)
    try:
        wait_for(lambda: True if reachable(port) or process.poll() is not None else None)
        assert process.poll() is None, "ray start failed"
        yield Head(f"127.0.0.1:{port}", process.pid)
    finally:
        family = [process.pid, *descendants(process.pid)]
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(30)
        finally:
            for pid in filter(alive, family):
                os.kill(pid, signal.SIGKILL)
            shutil.rmtree(place, ignore_errors=True)


def reachable(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def audited(start: Start, plan: Path, out: Path, address: str, patience: int = 120, **more: str) -> tuple[int, str]:
    where = ("--executor", "ray", "-x", f"address={address}", "-x", f"patience={patience}", "--device", "cpu", "-q")
    process = start("audit", plan, "-o", out, *where, **more)
    _, said = process.communicate(timeout=300)
    return process.returncode, said


def test_a_cluster_is_joined_by_its_token_and_by_nothing_else(
    plan: Path, start: Start, head: Head, tmp_path: Path
) -> None:
    code, said = audited(start, plan, tmp_path / "out", head.address, RAY_AUTH_TOKEN=TOKEN)
    assert code == 0, said
    finish(start("audit", plan, "-o", tmp_path / "here", "--workers", 1, "--device", "cpu", "-q"))
    assert by_key(tmp_path / "out") == by_key(tmp_path / "here")
    assert alive(head.process), "it is not ours to end"

    code, said = audited(start, plan, tmp_path / "other", head.address, 15, RAY_AUTH_TOKEN="ab" * 32)
    assert code == 3
    assert f"The Ray cluster at {head.address}" in said
    assert "Traceback" not in said

    code, said = audited(start, plan, tmp_path / "other", head.address)
    assert (code, said.count("\n")) == (2, 1)
    assert "needs its token, and none is set here" in said


def test_who_accepts_and_says_nothing_is_given_up(plan: Path, start: Start, tmp_path: Path) -> None:
    with socket.socket() as hole:
        hole.bind(("127.0.0.1", 0))
        hole.listen(16)
        address = f"127.0.0.1:{hole.getsockname()[1]}"
        code, said = audited(start, plan, tmp_path / "out", address, 5, RAY_AUTH_TOKEN=TOKEN)
    assert code == 3
    assert f"The Ray cluster at {address} did not answer within 5 s" in said
