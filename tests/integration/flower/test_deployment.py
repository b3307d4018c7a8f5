"""The tutorial's app on Flower's deployment engine: a SuperLink and SuperNodes, each a process, on loopback."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from fedglass.federation.truth import Truths
from fedglass.recordings.facts import preferred
from fedglass.recordings.observed import contradictions_of
from fedglass.recordings.reader import read_bundle

APP = Path(__file__).parents[3] / "examples" / "flower"
BIN = Path(sys.executable).parent
NODES, PATIENCE = 2, 300


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@contextmanager
def running(log: Path, environment: dict[str, str], *command: str) -> Iterator[None]:
    """A program with all that it starts, until it is no more needed."""
    with log.open("wb") as out:
        made = subprocess.Popen(
            command, stdout=out, stderr=out, env=environment, cwd=log.parent, start_new_session=True
        )
    try:
        yield
    finally:
        os.killpg(made.pid, signal.SIGTERM)
        try:
            made.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(made.pid, signal.SIGKILL)
            made.wait()


def wait_for(ready: Callable[[], bool], log: Path) -> None:
    end = time.monotonic() + PATIENCE
    while not ready():
        assert time.monotonic() < end, log.read_text()[-3000:]
        time.sleep(0.2)


def listens(port: int) -> bool:
    with socket.socket() as one:
        return one.connect_ex(("127.0.0.1", port)) == 0


def at(port: int) -> str:
    return f"127.0.0.1:{port}"


@dataclass(frozen=True)
class Ports:
    """Where a SuperLink listens: at one port for all or, in Flower's lowest version that is supported, at one for each.

    Some versions between have both kinds of ports at once; they are not tested.
    """

    users: int
    nodes: int

    def link(self) -> tuple[str, ...]:
        """What a SuperLink is started with."""
        if self.users == self.nodes:
            return ("--disable-runtime-dependency-installation", "--host", "127.0.0.1", "--port", str(self.users))
        apart = ("--control-api-address", at(self.users), "--fleet-api-address", at(self.nodes))
        return (*apart, "--serverappio-api-address", at(free_port()))

    def node(self) -> tuple[str, ...]:
        """And a SuperNode."""
        own = free_port()
        place = ("--port", str(own)) if self.users == self.nodes else ("--clientappio-api-address", at(own))
        return ("--superlink", at(self.nodes), *place)


def free_ports() -> Ports:
    told = subprocess.run([str(BIN / "flower-superlink"), "--help"], capture_output=True, text=True, check=False)
    users = free_port()
    return Ports(users, users if "--port" in told.stdout else free_port())


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The home of a user who has run the app; recordings go there."""
    home = tmp_path_factory.mktemp("home")
    app = home / "app"
    shutil.copytree(APP, app, ignore=shutil.ignore_patterns("__pycache__", "*.png"))
    ports = free_ports()
    (home / ".flwr").mkdir()
    (home / ".flwr" / "config.toml").write_text(
        f'[superlink]\ndefault = "own"\n[superlink.own]\naddress = "{at(ports.users)}"\ninsecure = true\n'
    )
    environment = {
        **os.environ,
        "HOME": str(home),
        "FLWR_HOME": str(home / ".flwr"),
        "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "OMP_NUM_THREADS": "1",
    }
    with ExitStack() as stack:
        link = home / "superlink.log"
        stack.enter_context(running(link, environment, str(BIN / "flower-superlink"), "--insecure", *ports.link()))
        wait_for(lambda: listens(ports.users) and listens(ports.nodes), link)
        for i in range(NODES):
            node = ("--insecure", *ports.node(), "--node-config", f"partition-id={i} num-partitions={NODES}")
            log = home / f"supernode-{i}.log"
            stack.enter_context(running(log, environment, str(BIN / "flower-supernode"), *node))
        wait_for(lambda: link.read_text().count("Activated node_id") >= NODES, link)
        done = subprocess.run(
            [str(BIN / "flwr"), "run", ".", "own", "--stream", "--run-config", "rounds=1"],
            env=environment,
            cwd=app,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return home


def test_the_server_and_the_clients_have_recorded(home: Path) -> None:
    bundle = read_bundle(home / "recordings" / "bundle")
    assert sorted(bundle.rounds) == [1]
    assert sorted(bundle.clients) == ["client-0", "client-1"]
    assert contradictions_of(bundle, 1) == []
    for client in bundle.clients:
        told = bundle.facts_of(client, 1)
        assert [preferred(told, name) for name in ("optimiser", "lr", "steps", "batch_norm")] == [
            "SGD",
            0.1,
            1,
            "batch",
        ]
        truth = Truths.load(home / "recordings" / "bundle-truth" / client)
        assert len(truth.examples[client].labels) == 2
