"""What every executor owes to its caller, on a Ray cluster of this machine; and that nobody else can talk to it."""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from fedglass.core.types import Training
from fedglass.execution.executor import Callbacks, FailedJob, PooledExecutor, client_trainer
from fedglass.execution.ray import OnRay

from .conftest import titles

OFFICE = """
import os, signal
import torch
from pathlib import Path

def halved(job, progress):
    return job / 2, torch.get_num_threads()

def told(job, progress):
    return os.environ.get(job)

def deadly(job, progress):
    count = Path(job)
    count.write_text(str(int(count.read_text() or 0) + 1) if count.exists() else "1")
    if int(count.read_text()) < 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return int(count.read_text())

def always_deadly(job, progress):
    os.kill(os.getpid(), signal.SIGKILL)

def faulty(job, progress):
    raise ValueError("a fault of this work")
"""

TALK = """
import os, sys
os.environ["RAY_AUTH_MODE"] = "token"
import ray
try:
    ray.init(address=sys.argv[1], log_to_driver=False)
except Exception as error:
    print(type(error).__name__, error)
else:
    print("WELCOME")
"""


@pytest.fixture(scope="module")
def office(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModuleType]:
    """A module whose functions workers find by name."""
    folder = tmp_path_factory.mktemp("office")
    (folder / "ray_office.py").write_text(OFFICE)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        yield importlib.import_module("ray_office")
        del sys.modules["ray_office"]


@pytest.fixture(scope="module")
def ray_of_two(office: ModuleType) -> Iterator[PooledExecutor]:
    """One cluster for the tests of this module: it takes a while to start."""
    with OnRay(workers=2).persistent() as ready:
        yield ready


def quiet() -> Callbacks[Any]:
    return Callbacks(lambda job: None, lambda job, done, total: None)


def test_every_job_comes_back_once_with_its_result(ray_of_two: PooledExecutor, office: ModuleType) -> None:
    jobs, started = [float(i) for i in range(9)], list[float]()
    back = list(ray_of_two.run(office.halved, jobs, Callbacks(started.append, lambda *way: None)))
    assert sorted(id(job) for job, _ in back) == sorted(map(id, jobs)), "the same objects"
    assert all(result == (job / 2, 1) for job, result in back), "results are their own, on one thread"
    assert started == jobs
    assert ray_of_two.slots() == 2


def test_our_variables_are_those_of_now(
    ray_of_two: PooledExecutor, office: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "FEDGLASS_TEST_OF_RAY"
    assert dict(ray_of_two.run(office.told, [name], quiet())) == {name: None}
    monkeypatch.setenv(name, "set later")
    assert dict(ray_of_two.run(office.told, [name], quiet())) == {name: "set later"}


def test_lost_workers_are_replaced_and_the_deadly_are_given_up(
    ray_of_two: PooledExecutor, office: ModuleType, tmp_path: Path
) -> None:
    mark = str(tmp_path / "mark")
    assert dict(ray_of_two.run(office.deadly, [mark], quiet())) == {mark: 3}
    ((_, lost),) = ray_of_two.run(office.always_deadly, [1], quiet())
    assert isinstance(lost, FailedJob)
    assert "4 workers of the cluster were lost with this case" in lost.reason
    ((_, fault),) = ray_of_two.run(office.faulty, [1], quiet())
    assert isinstance(fault, FailedJob)
    assert "ValueError: a fault of this work" in fault.reason


def test_a_run_can_be_left_in_the_middle_and_another_begun(ray_of_two: PooledExecutor, office: ModuleType) -> None:
    run = ray_of_two.run(office.halved, [1.0, 2.0, 3.0], quiet())
    next(run)
    run.close()
    assert len(list(ray_of_two.run(office.halved, [1.0, 2.0, 3.0], quiet()))) == 3


def test_clients_train_there_to_the_same_bit(ray_of_two: PooledExecutor, toy: Any) -> None:
    federation = toy.federation(Training(lr=0.1, epochs=2, batch_size=2), clients=5)
    here, there = federation.play(2), federation.play(2, train_clients=client_trainer(ray_of_two))
    for a, b in zip(here, there, strict=True):
        assert all(torch.equal(a.step[name], b.step[name]) for name in a.step)


def test_nothing_listens_beyond_loopback_and_strangers_are_refused(
    ray_of_two: PooledExecutor, office: ModuleType
) -> None:
    assert len(list(ray_of_two.run(office.halved, [1.0], quiet()))) == 1
    family = titles(os.getpid())
    assert any("raylet" in name for name in family.values())
    listening = addresses([os.getpid(), *family])
    assert listening, "they talk to each other"
    assert {host for host, _ in listening} <= {"127.0.0.1", "::1", "::ffff:127.0.0.1"}
    gcs = next(pid for pid, name in family.items() if "gcs_server" in name)
    (port,) = {port for _, port in addresses([gcs])}
    stranger = {k: v for k, v in os.environ.items() if not k.startswith("RAY_AUTH")}
    stranger |= {"RAY_AUTH_TOKEN": "ab" * 32, "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
    command = [sys.executable, "-c", TALK, f"127.0.0.1:{port}"]
    asked = subprocess.Popen(command, env=stranger, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        said, _ = asked.communicate(timeout=60)
    except subprocess.TimeoutExpired:
        asked.send_signal(signal.SIGKILL)
        said, _ = asked.communicate()
    assert "WELCOME" not in said


def addresses(processes: list[int]) -> set[tuple[str, int]]:
    """Where these processes listen for TCP connections, from /proc."""
    sockets = set()
    for pid in processes:
        for link in Path(f"/proc/{pid}/fd").glob("*"):
            try:
                sockets.add(os.readlink(link))
            except OSError:
                continue
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in sockets:
                host, port = fields[1].split(":")
                found.add((readable(host), int(port, 16)))
    return found


def readable(host: str) -> str:
    """An address of /proc/net: words of 4 bytes, each turned round."""
    import ipaddress

    raw = b"".join(bytes.fromhex(host[i : i + 8])[::-1] for i in range(0, len(host), 8))
    address = ipaddress.ip_address(raw)
    mapped = getattr(address, "ipv4_mapped", None)
    return str(mapped or address)
