"""Whatever a cluster does to its tasks, each job comes back once, and lost ones are sent again."""

from __future__ import annotations

import os
import pickle
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from fedglass.core.errors import UsageError
from fedglass.execution.executor import Callbacks, FailedJob
from fedglass.execution.remote import (
    ATTEMPTS,
    ClusterExecutor,
    WorkerLost,
    run_on_cluster,
    run_task,
)


@dataclass(eq=False)
class Unreliable:
    """A cluster in this process, which loses the tasks of some keys so many times."""

    crashes: Counter[str] = field(default_factory=Counter)
    faulty: bool = False
    given: list[str] = field(default_factory=list)
    forgotten: list[str] = field(default_factory=list)
    cancelled: list[str] = field(default_factory=list)
    tasks: dict[object, tuple[Callable[[Any], Any], Any, str]] = field(default_factory=dict)

    def slots(self) -> int:
        return 2

    def submit(self, function: Callable[[Any], Any], task: Any, key: str) -> object:
        handle = object()
        self.tasks[handle] = function, task, key
        self.given.append(key)
        return handle

    def ended(self, handles: Sequence[object]) -> Sequence[object]:
        return handles[-1:]  # the last first: order must not matter

    def result(self, handle: object) -> Any:
        function, task, key = self.tasks[handle]
        if self.crashes[key] > 0:
            self.crashes[key] -= 1
            raise WorkerLost("WorkerCrashedError: gone")
        if self.faulty:
            return FailedJob("ValueError: a fault")
        return function(task)

    def forget(self, handle: object) -> None:
        self.forgotten.append(self.tasks.pop(handle)[2])

    def cancel(self, handle: object) -> None:
        self.cancelled.append(self.tasks.pop(handle)[2])


@dataclass(frozen=True)
class Errand:
    key: str


def told(job: Errand, progress: object) -> tuple[str, int, str | None]:
    return job.key, torch.get_num_threads(), os.environ.get("FEDGLASS_TEST_OF_REMOTE")


def nothing(job: Errand, progress: object) -> None:
    """Has no result, which is one too."""


def heard(started: list[str]) -> Callbacks[Errand]:
    return Callbacks(lambda job: started.append(job.key), lambda job, done, total: None)


JOBS = [Errand(f"errand {i}") for i in range(7)]


def keys_of(cluster: Unreliable) -> dict[str, str]:
    """The key of each errand's task, learnt by sending them all."""
    list(run_on_cluster(cluster, told, JOBS, heard([])))
    return dict(zip((job.key for job in JOBS), cluster.given, strict=True))


def test_lost_tasks_are_sent_again_and_every_job_comes_back_once() -> None:
    key = keys_of(Unreliable())
    assert len(set(key.values())) == len(JOBS)
    cluster, started = Unreliable(), list[str]()
    cluster.crashes.update({key["errand 0"]: ATTEMPTS - 1, key["errand 4"]: 1})
    back = list(run_on_cluster(cluster, told, JOBS, heard(started)))
    assert sorted(job.key for job, _ in back) == sorted(job.key for job in JOBS)
    assert all(result == (job.key, 1, None) for job, result in back)
    assert started == [job.key for job in JOBS], "each start is told once"
    assert Counter(cluster.given) == {
        **dict.fromkeys(key.values(), 1),
        key["errand 0"]: ATTEMPTS,
        key["errand 4"]: 2,
    }
    assert not cluster.tasks, "nothing of them is left"


def test_a_job_that_kills_every_worker_is_given_up() -> None:
    cluster = Unreliable(crashes=Counter({keys_of(Unreliable())["errand 2"]: 99}))
    found = {job.key: result for job, result in run_on_cluster(cluster, told, JOBS, heard([]))}
    lost = found.pop("errand 2")
    assert isinstance(lost, FailedJob)
    assert f"{ATTEMPTS} workers" in lost.reason
    assert "WorkerCrashedError" in lost.reason
    assert not any(isinstance(result, FailedJob) for result in found.values())


def test_no_result_is_a_result() -> None:
    assert [result for _, result in run_on_cluster(Unreliable(), nothing, JOBS, heard([]))] == [None] * len(JOBS)


def test_a_fault_is_not_tried_again() -> None:
    cluster = Unreliable(faulty=True)
    ((_, lost),) = run_on_cluster(cluster, told, JOBS[:1], heard([]))
    assert isinstance(lost, FailedJob)
    assert "ValueError: a fault" in lost.reason
    assert len(cluster.given) == 1


def test_what_runs_is_cancelled_when_nobody_waits() -> None:
    cluster = Unreliable()
    run = run_on_cluster(cluster, told, JOBS, heard([]))
    next(run)
    assert not cluster.forgotten, "the answer is kept until the caller has kept it"
    run.close()
    assert len(cluster.cancelled) == 2, "as many as it has slots"


def test_workers_are_told_our_variables_and_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[Any] = []

    class Curious(Unreliable):
        def submit(self, function: Callable[[Any], Any], task: Any, key: str) -> object:
            sent.append(task)
            return super().submit(function, task, key)

    monkeypatch.setenv("FEDGLASS_TEST_OF_REMOTE", "calm")
    monkeypatch.setenv("SECRET_OF_THIS_MACHINE", "hush")
    ((_, result),) = run_on_cluster(Curious(), told, JOBS[:1], heard([]))
    assert result == ("errand 0", 1, "calm")
    assert b"hush" not in pickle.dumps(sent)


def test_a_worker_of_another_version_or_without_the_code_is_refused() -> None:
    class Old(Unreliable):
        def result(self, handle: object) -> bytes | str:
            task = self.tasks[handle][1]
            return run_task((*task[:4], {**task[4], "torch": "1.0"}))

    class Bare(Unreliable):
        def result(self, handle: object) -> bytes | str:
            return run_task((b"cno_such_module\nwork\n.", *self.tasks[handle][1][1:]))

    with pytest.raises(UsageError, match=r"a worker has .*torch .*this process .*torch 1\.0.*install there"):
        list(run_on_cluster(Old(), told, JOBS, heard([])))
    with pytest.raises(UsageError, match="No module named 'no_such_module'"):
        list(run_on_cluster(Bare(), told, JOBS, heard([])))


def test_a_cluster_is_asked_for_once_and_only_where_there_is_work() -> None:
    asked: list[Unreliable] = []

    def connect() -> nullcontext[Unreliable]:
        asked.append(Unreliable())
        return nullcontext(asked[-1])

    with ClusterExecutor(connect) as ready:
        assert list(ready.run(told, [], heard([]))) == []
        with pytest.raises(UsageError, match="cannot be sent"):
            list(ready.run(told, [lambda: None], Callbacks(lambda job: None, lambda *way: None)))
        assert not asked
        assert len(list(ready.run(told, JOBS, heard([])))) == len(list(ready.run(told, JOBS, heard([])))) == len(JOBS)
        assert ready.slots() == 2
    assert len(asked) == 1
