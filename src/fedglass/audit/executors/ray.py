"""Cases on a Ray cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

from fedglass.attack.parts import Progress
from fedglass.audit.executors.executor import Job, Lost, Ready, Result, Watch
from fedglass.audit.executors.remote import connected
from fedglass.core.environment import cores
from fedglass.core.errors import UsageError
from fedglass.core.registry import register
from fedglass.integrations import ray
from fedglass.integrations.cluster import Cluster


@register("executors", "ray", summary="a Ray cluster: the one at an address, or one of this machine on loopback alone")
@dataclass(frozen=True)
class OnRay:
    """Runs the jobs as tasks of Ray. One whose worker is killed is sent again, up to three times.

    Without an address, a cluster of `workers` processes is started for the run: it listens on loopback alone, has a
    token of its own and ends with this process. Progress within a case is not told.
    """

    workers: int = 0
    """Tasks at a time; 0 for all that the cluster has."""
    address: str = ""
    """HOST:PORT of a cluster of which this machine is a node."""
    patience: float = 30.0
    """Seconds after which a cluster that does not answer is given up."""
    gpus: int = 0
    """Of each task."""

    def __post_init__(self) -> None:
        if self.workers < 0 or self.gpus < 0 or not self.patience > 0:
            raise UsageError(
                f"Ray needs at least 0 workers and GPUs and a patience above 0 s, got workers={self.workers}, "
                f"gpus={self.gpus}, patience={self.patience:g}."
            )
        ray.check_installed()

    def run(
        self, work: Callable[[Job, Progress], Result], jobs: Sequence[Job], watch: Watch[Job]
    ) -> Iterator[tuple[Job, Result | Lost]]:
        """Jobs with their results, in the order in which they end."""
        with self.kept() as ready:
            yield from ready.run(work, jobs, watch)

    def kept(self) -> AbstractContextManager[Ready]:
        """Connected by the first run that has jobs, until the context ends."""
        return connected(self._cluster)

    def _cluster(self) -> AbstractContextManager[Cluster]:
        if self.address:
            return ray.joined_cluster(self.address, self.workers, self.gpus, self.patience)
        return ray.own_cluster(self.workers or cores(), self.gpus)
