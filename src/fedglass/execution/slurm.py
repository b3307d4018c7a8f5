"""Cases as jobs of SLURM."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import logging
import os
import shutil
import stat
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedglass.attack.parts import Progress
from fedglass.core.errors import AuditError, UsageError
from fedglass.core.files import write_atomic
from fedglass.core.registry import register
from fedglass.execution.executor import Job, Lost, Result, Watch, packed
from fedglass.execution.remote import Crashed, Failed, run_on

# submitit, an optional package, as the way to SLURM.
#
# A task has a folder, named by its key, on a file system that all machines share. What a killed caller has left there
# is
# taken up by the next one that hands in the same task: a job that still waits or runs is waited for, one that has ended
# is read.


MOMENT = 0.2
"""Seconds between two looks at the jobs."""
NOTE = "job"
"""The file in a task's folder that says under which number it was handed in."""


def check_available(system: str) -> None:
    """Refuse where jobs can not be handed in."""
    if importlib.util.find_spec("submitit") is None:
        raise UsageError(
            "The executor slurm needs the package submitit, which is not installed: pip install fedglass[slurm]."
        )
    if system == "slurm" and shutil.which("sbatch") is None:
        raise UsageError(
            "SLURM's command sbatch is not found here: run on a machine from which jobs are submitted, or choose "
            "another executor."
        )


@dataclass(frozen=True, eq=False)
class Handle:
    """A task that was handed in."""

    place: Path
    job: Any


@dataclass(frozen=True, eq=False)
class SubmititCluster:
    """SLURM, or `local`: the same with processes of this machine, to try it out."""

    system: str
    most: int
    root: Path
    parameters: Mapping[str, Any]

    @classmethod
    def opened(cls, system: str, most: int, root: Path, parameters: Mapping[str, Any]) -> SubmititCluster:
        """With a folder that nobody else can write to."""
        _make_private(root)
        logging.getLogger("submitit").setLevel(logging.ERROR)
        return cls(system, most, root, parameters)

    def slots(self) -> int:
        return self.most

    def submit(self, function: Callable[[Any], Any], task: Any, key: str) -> Handle:
        place = self.root / key
        if (left := self._left_by_another(place)) is not None:
            return Handle(place, left)
        shutil.rmtree(place, ignore_errors=True)
        executor = _submitit().AutoExecutor(folder=place, cluster=self.system)
        executor.update_parameters(**self.parameters)
        try:
            job = executor.submit(function, task)
        except (OSError, subprocess.SubprocessError, _submitit().core.utils.FailedJobError) as error:
            raise AuditError(
                f"SLURM did not take the job ({_last_line(error)}): correct the executor's options, or run the same "
                "command again later."
            ) from error
        write_atomic(place / NOTE, job.job_id)
        return Handle(place, job)

    def _left_by_another(self, place: Path) -> Any:
        """The job of the same task that somebody handed in before; None where nobody knows of it any more."""
        try:
            number = (place / NOTE).read_text()
        except OSError:
            return None
        kind = _submitit().SlurmJob if self.system == "slurm" else _submitit().LocalJob
        job = kind(place, number)
        known = job.paths.result_pickle.exists() or job.get_info().get("State")
        return job if known else None

    def ended(self, handles: Sequence[Handle]) -> Sequence[Handle]:
        found = [handle for handle in handles if handle.job.done()]
        if not found:
            time.sleep(MOMENT)
        return found

    def answer(self, handle: Handle) -> Any:
        utils = _submitit().core.utils
        try:
            return handle.job.result()
        except utils.FailedJobError as error:  # also an UncompletedJobError, so it goes first
            raise Failed(_raised(error)) from error
        except utils.UncompletedJobError as error:
            raise Crashed(f"job {handle.job.job_id} ended without a result, {handle.job.state}") from error

    def forget(self, handle: Handle) -> None:
        shutil.rmtree(handle.place, ignore_errors=True)

    def cancel(self, handle: Handle) -> None:
        with contextlib.suppress(OSError):
            handle.job.cancel(check=False)
        self.forget(handle)


def _submitit() -> Any:
    return importlib.import_module("submitit")


def _make_private(root: Path) -> None:
    """The folder holds pickles and private examples: it is ours, and closed to others."""
    try:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = root.stat()
    except OSError as error:
        raise UsageError(f"The folder {root} for SLURM's jobs can not be made: {error.strerror}.") from error
    if found.st_uid != os.getuid() or stat.S_IMODE(found.st_mode) & 0o077:
        raise UsageError(
            f"The folder {root} for SLURM's jobs must belong to you and be closed to others, since what lies there is "
            f"run: chmod 700 {root}, or name another one."
        )


def _raised(error: BaseException) -> str:
    """What was raised: the last line of the trace between the rules of submitit's report."""
    trace = str(error).partition("---\n")[2].partition("\n---")[0]
    return (trace.strip().splitlines() or [type(error).__name__])[-1]


def _last_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[-1]


SYSTEMS = ("slurm", "local")
AT_A_TIME = 16


@register("executors", "slurm", summary="jobs of SLURM, by submitit")
@dataclass(frozen=True)
class OnSlurm:
    """Runs every job as a job of SLURM. One that is lost is handed in again, up to three times.

    Clients of simulated federations train in this process: a round is shorter than a queue. Progress within a case
    is not told. Where this process is killed, its jobs go on, and the next run of the same audit takes them up.
    """

    workers: int = AT_A_TIME
    """Jobs in the queue at a time."""
    partition: str = ""
    account: str = ""
    qos: str = ""
    minutes: int = 60
    """After which SLURM ends a job."""
    memory_gb: int = 4
    gpus: int = 0
    folder: str = ""
    """On a file system that all machines share; by default fedglass/slurm below the user's cache."""
    system: str = "slurm"
    """`local` runs the same with processes of this machine, to try it out."""

    def __post_init__(self) -> None:
        if min(self.workers, self.minutes, self.memory_gb) < 1 or self.gpus < 0:
            raise UsageError(
                f"SLURM needs at least 1 of workers, minutes and memory_gb, got workers={self.workers}, "
                f"minutes={self.minutes}, memory_gb={self.memory_gb}, gpus={self.gpus}."
            )
        if self.system not in SYSTEMS:
            raise UsageError(f"system must be one of {', '.join(SYSTEMS)}, got {self.system!r}.")
        check_available(self.system)

    def run(
        self, work: Callable[[Job, Progress], Result], jobs: Sequence[Job], watch: Watch[Job]
    ) -> Iterator[tuple[Job, Result | Lost]]:
        """Jobs with their results, in the order in which they end."""
        if jobs:
            packed((work, jobs[0]))  # what can not be sent is said before anything is handed in
            cluster = SubmititCluster.opened(self.system, self.workers, self._root(), self._parameters())
            yield from run_on(cluster, work, jobs, watch)

    def _root(self) -> Path:
        cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        return Path(self.folder).expanduser().resolve() if self.folder else Path(cache) / "fedglass" / "slurm"

    def _parameters(self) -> dict[str, object]:
        named = {"slurm_partition": self.partition, "slurm_account": self.account, "slurm_qos": self.qos}
        return {
            "timeout_min": self.minutes,
            "mem_gb": self.memory_gb,
            "cpus_per_task": 1,
            "gpus_per_node": self.gpus,
            "slurm_job_name": "fedglass",
            **{name: value for name, value in named.items() if value},
        }
