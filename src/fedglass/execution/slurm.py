"""Cases as jobs of SLURM, by the optional package submitit.

A task has a folder, named by its key, on a file system that all machines share. If a caller was killed, the next one
that submits the same task finds its folder: it waits for a job that waits or runs, and reads one that has ended.
"""

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
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedglass.core.errors import AuditError, UsageError
from fedglass.core.files import make_folder, read_file, write_atomic
from fedglass.core.registry import register
from fedglass.execution.executor import Callbacks, FailedJob, Job, JobWork, Result, Results, to_bytes
from fedglass.execution.remote import WorkerLost, last_line, run_on_cluster

POLL_SECONDS = 0.2
"""Seconds between two looks at the jobs."""
JOB_NUMBER = "job"
"""The file in a task's folder that holds the number of its SLURM job."""


SubmittedTask = tuple[Path, Any]
"""The folder of a submitted task, and its job."""


@dataclass(frozen=True, eq=False)
class SubmititCluster:
    """SLURM, or `local`: the same with processes of this machine, to try it out."""

    options: OnSlurm
    root: Path
    """The folder of the jobs."""

    def slots(self) -> int:
        return self.options.workers

    def submit(self, function: Callable[[Any], Any], task: Any, key: str) -> SubmittedTask:
        folder = self.root / key
        if (earlier := self._submitted_before(folder)) is not None:
            return folder, earlier
        shutil.rmtree(folder, ignore_errors=True)
        executor = _submitit().AutoExecutor(folder=folder, cluster=self.options.system)
        executor.update_parameters(**self.options.parameters())
        try:
            job = executor.submit(function, task)
        except (OSError, subprocess.SubprocessError, _submitit().core.utils.FailedJobError) as error:
            raise AuditError(
                f"SLURM did not take the job ({last_line(error)}): correct the executor's options, or run the same "
                "command again later."
            ) from error
        write_atomic(folder / JOB_NUMBER, job.job_id)
        return folder, job

    def _submitted_before(self, folder: Path) -> Any:
        """Return the job of the same task that an earlier run submitted, or None if SLURM does not know it any more."""
        try:
            number = read_file(folder / JOB_NUMBER, 1000).decode()
        except OSError:
            return None
        kind = _submitit().SlurmJob if self.options.system == "slurm" else _submitit().LocalJob
        job = kind(folder, number)
        exists = job.paths.result_pickle.exists() or job.get_info().get("State")
        return job if exists else None

    def ended(self, handles: Sequence[SubmittedTask]) -> Sequence[SubmittedTask]:
        finished = [handle for handle in handles if handle[1].done()]
        if not finished:
            time.sleep(POLL_SECONDS)
        return finished

    def result(self, handle: SubmittedTask) -> Any:
        utils, job = _submitit().core.utils, handle[1]
        try:
            return job.result()
        except utils.FailedJobError as error:  # also an UncompletedJobError, so it goes first
            # The traceback in submitit's report.
            trace = str(error).partition("---\n")[2].partition("\n---")[0]
            return FailedJob(last_line(error, trace))
        except utils.UncompletedJobError as error:
            raise WorkerLost(f"job {job.job_id} ended without a result, {job.state}") from error

    def forget(self, handle: SubmittedTask) -> None:
        shutil.rmtree(handle[0], ignore_errors=True)

    def cancel(self, handle: SubmittedTask) -> None:
        with contextlib.suppress(OSError):
            handle[1].cancel(check=False)
        self.forget(handle)


def _submitit() -> Any:
    return importlib.import_module("submitit")


def _make_private(root: Path) -> None:
    """Make the folder, and check that only we can enter it: it holds pickles, which are run, and private examples."""
    try:
        make_folder(root)
        status = root.stat()
    except OSError as error:
        raise UsageError(f"The folder {root} for SLURM's jobs cannot be made: {error.strerror}.") from error
    if status.st_uid != os.getuid() or stat.S_IMODE(status.st_mode) & 0o077:
        raise UsageError(
            f"The folder {root} for SLURM's jobs must belong to you and be closed to others, since what lies there is "
            f"run: chmod 700 {root}, or name another one."
        )


SYSTEMS = ("slurm", "local")
JOBS_AT_A_TIME = 16


@register("executors", "slurm", summary="jobs of SLURM, by submitit")
@dataclass(frozen=True)
class OnSlurm:
    """Runs every job as a job of SLURM. A job that is lost is submitted again, up to three times.

    Clients of simulated federations train in this process: a round is shorter than a queue. Progress within a case
    is not reported. If this process is killed, its jobs go on, and the next run of the same audit uses their results.
    """

    workers: int = JOBS_AT_A_TIME
    """Jobs in the queue at a time."""
    partition: str = ""
    account: str = ""
    qos: str = ""
    minutes: int = 60
    """Minutes after which SLURM ends a job."""
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
        if importlib.util.find_spec("submitit") is None:
            raise UsageError(
                "The executor slurm needs the package submitit, which is not installed: pip install fedglass[slurm]."
            )
        if self.system == "slurm" and shutil.which("sbatch") is None:
            raise UsageError(
                "SLURM's command sbatch is not found here: run on a machine from which jobs are submitted, or choose "
                "another executor."
            )

    def run(self, work: JobWork[Job, Result], jobs: Sequence[Job], callbacks: Callbacks[Job]) -> Results[Job, Result]:
        """Yield each job with its result, in the order in which the jobs end."""
        if jobs:
            to_bytes((work, jobs[0]))  # a job that cannot be sent is refused before anything is submitted
            cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fedglass" / "slurm"
            root = Path(self.folder).expanduser().resolve() if self.folder else cache
            _make_private(root)
            logging.getLogger("submitit").setLevel(logging.ERROR)
            yield from run_on_cluster(SubmititCluster(self, root), work, jobs, callbacks)

    def parameters(self) -> dict[str, object]:
        """Return the options under the names of submitit."""
        named = {"slurm_partition": self.partition, "slurm_account": self.account, "slurm_qos": self.qos}
        return {
            "timeout_min": self.minutes,
            "mem_gb": self.memory_gb,
            "cpus_per_task": 1,
            "gpus_per_node": self.gpus,
            "slurm_job_name": "fedglass",
            **{name: value for name, value in named.items() if value},
        }
