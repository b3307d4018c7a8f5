"""What every executor owes to its caller, on each of them."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from types import ModuleType

import pytest

from fedglass.execution.executor import Callbacks, Executor, InProcess, throttled
from fedglass.execution.processes import Processes

EXECUTORS: tuple[Executor, ...] = (InProcess(), Processes(1), Processes(2))

OFFICE = """
import os
import torch

def halved(job, progress):
    progress(1, 2)
    progress(2, 2)
    return job / 2, torch.get_num_threads()

def told(job, progress):
    return os.environ.get(job)
"""


@pytest.fixture(scope="module")
def office(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModuleType]:
    """A module whose functions workers find by name."""
    folder = tmp_path_factory.mktemp("office")
    (folder / "office_work.py").write_text(OFFICE)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        yield importlib.import_module("office_work")
        del sys.modules["office_work"]


def quiet() -> Callbacks[object]:
    return Callbacks(lambda job: None, lambda job, done, total: None)


@pytest.mark.parametrize("executor", EXECUTORS, ids=repr)
def test_every_job_comes_back_once_with_its_result_and_its_news(executor: Executor, office: ModuleType) -> None:
    jobs, news = [float(i) for i in range(5)], []
    callbacks: Callbacks[float] = Callbacks(
        lambda job: news.append((job, 0)), lambda job, done, _: news.append((job, done))
    )
    found = executor.run(office.halved, jobs, callbacks)
    assert news == [], "nothing runs before it is asked for"
    back = list(found)
    assert sorted(id(job) for job, _ in back) == sorted(map(id, jobs)), "the same objects"
    assert all(result == (job / 2, 1) for job, result in back), "results are their own, on one thread"
    for job in jobs:
        mine = [done for who, done in news if who == job]
        assert mine[0] == 0, "the start is told first"
        assert mine[-1] == 2, "the end is told always"


@pytest.mark.parametrize("executor", EXECUTORS, ids=repr)
def test_no_jobs_are_no_results(executor: Executor, office: ModuleType) -> None:
    assert list(executor.run(office.halved, [], quiet())) == []


@pytest.mark.parametrize("executor", EXECUTORS, ids=repr)
def test_the_environment_is_the_callers_of_now(
    executor: Executor, office: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "FEDGLASS_TEST_OF_EXECUTORS"
    assert dict(executor.run(office.told, [name, "NOBODY"], quiet())) == {name: None, "NOBODY": None}
    monkeypatch.setenv(name, "set later")
    assert dict(executor.run(office.told, [name, "NOBODY"], quiet())) == {name: "set later", "NOBODY": None}


@pytest.mark.parametrize("executor", EXECUTORS, ids=repr)
def test_a_run_can_be_left_in_the_middle_and_another_begun(executor: Executor, office: ModuleType) -> None:
    jobs = [1.0, 2.0, 3.0]
    first = next(executor.run(office.halved, jobs, quiet()))
    assert first[1] == (first[0] / 2, 1)
    assert len(list(executor.run(office.halved, jobs, quiet()))) == 3


def test_progress_is_throttled_but_the_end_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("fedglass.execution.executor.time.monotonic", lambda: now[0])
    said: list[tuple[int, int]] = []
    say = throttled(lambda done, total: said.append((done, total)))
    for done in range(10):
        say(done, 10)
        now[0] += 0.125
    say(10, 10)
    assert said == [(0, 10), (2, 10), (4, 10), (6, 10), (8, 10), (10, 10)]
