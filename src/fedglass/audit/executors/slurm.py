"""Cases as jobs of SLURM."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedglass.attack.parts import Progress
from fedglass.audit.executors.executor import Job, Lost, Result, Watch
from fedglass.audit.executors.packing import packed
from fedglass.audit.executors.remote import run_on
from fedglass.core.errors import UsageError
from fedglass.core.registry import register
from fedglass.integrations.submitit import SubmititCluster, check_available

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
