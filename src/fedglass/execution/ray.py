"""Cases on a Ray cluster: one that runs already, or one of this machine. Ray is an optional package.

Ray runs the code that it is sent, as the user who started it. So a cluster is joined only with its token. A cluster
that is started here has a token of its own, listens on the loopback interface alone and keeps its files private.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import ipaddress
import os
import secrets
import shutil
import socket
import stat
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedglass.core.errors import AuditError, UsageError
from fedglass.core.registry import register
from fedglass.execution.executor import Callbacks, FailedJob, Job, JobWork, Result, Results
from fedglass.execution.fork_server import cores, environment
from fedglass.execution.remote import ClusterExecutor, WorkerLost, last_line

MODE, TOKEN, TOKEN_FILE = "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"
LOOPBACK_ALONE = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
"""Despite its name it works on Linux: without it a node listens on every interface."""
QUIET = {"RAY_USAGE_STATS_ENABLED": "0"}
WAIT_SECONDS = 1.0
"""Seconds to wait for the end of some task."""
LONGEST_FOLDER = 40
"""Characters of a folder name that leave room for the names of Ray's sockets."""


@dataclass(frozen=True, eq=False)
class RayCluster:
    """A connection to Ray."""

    ray: Any
    limit: int
    gpus: float

    def slots(self) -> int:
        return self.limit

    def submit(self, function: Callable[[Any], Any], task: Any, key: str) -> Any:
        # Ray would try again by itself, for ever where memory ran out: `run_on_cluster` counts the attempts instead.
        options = {"num_cpus": 1, "num_gpus": self.gpus, "max_retries": 0, "name": f"fedglass {key}"}
        return _remote(self.ray, function).options(**options).remote(task)

    def ended(self, handles: Sequence[Any]) -> Sequence[Any]:
        if not self.ray.wait(handles, num_returns=1, timeout=WAIT_SECONDS)[0]:
            return []
        finished: Sequence[Any] = self.ray.wait(handles, num_returns=len(handles), timeout=0)[0]
        return finished

    def result(self, handle: Any) -> Any:
        errors = self.ray.exceptions
        try:
            return self.ray.get(handle)
        except errors.RayTaskError as error:
            return FailedJob(last_line(error))
        except errors.RayError as error:
            raise WorkerLost(f"{type(error).__name__}: {_first_line(error)}") from error

    def forget(self, handle: Any) -> None:
        """Do nothing: Ray frees the task as soon as its handle is gone."""

    def cancel(self, handle: Any) -> None:
        self.ray.cancel(handle, force=True)


@contextlib.contextmanager
def own_cluster(workers: int, gpus: float) -> Iterator[RayCluster]:
    """Start a cluster of this machine, which ends with the context or with this process."""
    # A shorter folder where the names of sockets would be too long.
    short = None if len(tempfile.gettempdir()) <= LONGEST_FOLDER else "/tmp"
    place = Path(tempfile.mkdtemp(prefix="fedglass-", dir=short))
    variables = {MODE: "token", TOKEN: _own_token(), "RAY_TMPDIR": str(place / "ray"), **LOOPBACK_ALONE, **QUIET}
    try:
        with environment(variables):
            ray = _imported(loopback=True)
            # In this thread: Linux ends the cluster with the thread that started it.
            ray.init(
                address="local",
                num_cpus=workers,
                include_dashboard=False,
                log_to_driver=False,
                logging_level="error",
                _temp_dir=str(place / "ray"),
                _node_ip_address="127.0.0.1",
            )
            try:
                yield RayCluster(ray, workers, gpus)
            finally:
                ray.shutdown()
    finally:
        shutil.rmtree(place, ignore_errors=True)


@contextlib.contextmanager
def joined_cluster(address: str, workers: int, gpus: float, patience: float) -> Iterator[RayCluster]:
    """Join the cluster at that address; this machine must be one of its nodes. `workers=0` uses all of its workers."""
    host, port = _host_and_port(address)
    mode = os.environ.get(MODE, "token")
    if mode == "token":
        _check_token()
    _check_reachable(host, port, address, min(patience, 10.0))
    near = _is_loopback(host)
    with environment({MODE: mode, **(LOOPBACK_ALONE if near else {}), **QUIET}):
        ray = _imported(loopback=near)
        _join(ray, address, patience)
        try:
            kind = "GPU" if gpus else "CPU"
            yield RayCluster(ray, workers or max(1, int(ray.cluster_resources().get(kind, 1))), gpus)
        finally:
            ray.shutdown()


def _join(ray: Any, address: str, patience: float) -> None:
    """Connect within `patience` seconds: Ray itself may try for minutes, in code that ignores Ctrl-C."""
    raised: list[BaseException] = []

    def connect() -> None:
        try:
            ray.init(address=address, log_to_driver=False, logging_level="error")
        except (ConnectionError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
            raised.append(error)

    attempt = threading.Thread(target=connect, daemon=True)
    attempt.start()
    attempt.join(patience)
    if attempt.is_alive():
        raise AuditError(
            f"The Ray cluster at {address} did not answer within {patience:g} s: check that Ray listens there, that "
            "its token is the one here, and that this machine is one of its nodes; then run the same command again."
        )
    if raised:
        raise AuditError(f"The Ray cluster at {address} cannot be joined: {_first_line(raised[0])}") from raised[0]


def _host_and_port(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    if "://" in address or not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise UsageError(
            f"The address of a Ray cluster must be HOST:PORT, such as 10.0.0.5:6379, got {address!r}: give that of its "
            "head, and run fedglass on one of its nodes."
        )
    return host.strip("[]"), int(port)


def _check_token() -> None:
    """Refuse to go on without a token, and make the token file private: Ray leaves it readable for others."""
    if os.environ.get(TOKEN):
        return
    path = Path(os.environ.get(TOKEN_FILE) or Path.home() / ".ray" / "auth_token")
    if not path.is_file():
        raise UsageError(
            f"Joining a Ray cluster needs its token, and none is set here: set {TOKEN}, or {TOKEN_FILE} to a file "
            f"that holds it, or copy it to {path} (`ray get-auth-token` on the cluster's head prints it)."
        )
    with contextlib.suppress(OSError):
        if stat.S_IMODE(path.stat().st_mode) & 0o077:
            path.chmod(0o600)


def _check_reachable(host: str, port: int, address: str, patience: float) -> None:
    try:
        socket.create_connection((host, port), timeout=patience).close()
    except OSError as error:
        raise AuditError(
            f"No Ray cluster can be reached at {address} ({error.strerror or error}): check the address and that the "
            "cluster runs, then run the same command again."
        ) from error


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _imported(loopback: bool) -> Any:
    """Import Ray, where it is safe to use: not in a process that already uses it."""
    before = "ray" in sys.modules
    ray = importlib.import_module("ray")
    settings = importlib.import_module("ray._private.ray_constants")
    if before and loopback and getattr(settings, "ENABLE_RAY_CLUSTER", True):
        raise UsageError(
            "Ray was imported before, in such a way that a cluster of this machine would listen to the network: set "
            "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER=0 in the environment first."
        )
    if ray.is_initialized():
        raise UsageError("This process is connected to a Ray cluster already: call ray.shutdown() first.")
    return ray


@functools.cache
def _own_token() -> str:
    """Return one token for all clusters of this process: Ray reads it only once."""
    return os.environ.get(TOKEN) or secrets.token_hex(32)


@functools.cache
def _remote(ray: Any, function: Callable[[Any], Any]) -> Any:
    return ray.remote(function)


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)


@register("executors", "ray", summary="a Ray cluster: the one at an address, or one of this machine on loopback alone")
@dataclass(frozen=True)
class OnRay:
    """Runs the jobs as tasks of Ray. A job that loses its worker is sent again, up to three times.

    Without an address, a cluster of `workers` processes is started for the run: it listens on loopback alone, has a
    token of its own and ends with this process. Progress within a case is not reported.
    """

    workers: int = 0
    """Tasks at a time; 0 for all that the cluster has."""
    address: str = ""
    """HOST:PORT of a cluster; this machine must be one of its nodes."""
    patience: float = 30.0
    """Seconds to wait for an answer of the cluster."""
    gpus: float = 0.0
    """Of each task; a share where several tasks share a GPU."""

    def __post_init__(self) -> None:
        if self.workers < 0 or self.gpus < 0 or not self.patience > 0:
            raise UsageError(
                f"Ray needs at least 0 workers and GPUs and a patience above 0 s, got workers={self.workers}, "
                f"gpus={self.gpus:g}, patience={self.patience:g}."
            )
        if importlib.util.find_spec("ray") is None:
            raise UsageError(
                "The executor ray needs the package ray, which is not installed: pip install fedglass[ray]."
            )

    def run(self, work: JobWork[Job, Result], jobs: Sequence[Job], callbacks: Callbacks[Job]) -> Results[Job, Result]:
        """Yield each job with its result, in the order in which the jobs end."""
        with self.persistent() as executor:
            yield from executor.run(work, jobs, callbacks)

    def persistent(self) -> ClusterExecutor:
        """Return an executor that the first run with jobs connects, until the context ends."""
        if self.address:
            return ClusterExecutor(lambda: joined_cluster(self.address, self.workers, self.gpus, self.patience))
        return ClusterExecutor(lambda: own_cluster(self.workers or cores(), self.gpus))
