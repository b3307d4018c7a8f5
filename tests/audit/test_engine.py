"""What the engine owes to whoever has cases: targets made where they are played, each key once, nothing lost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from fedglass.attack.parts import Progress
from fedglass.audit.audit import Job
from fedglass.audit.play import Work, play_unfinished, unfinished_cases
from fedglass.audit.target import AuditProgress, Case, ProbeResult, Target
from fedglass.core.errors import AuditError
from fedglass.execution.executor import Executor, InProcess
from fedglass.execution.processes import Processes
from fedglass.verdict.directory import RECORDS, RecordFile
from fedglass.verdict.records import Record

FACTS = {"attack": "count", "attack_repr": "Count()", "view": "v", "round": 1, "repeat": 0, "client": "0"}


@dataclass(frozen=True)
class Count:
    """A probe that counts the examples behind a message."""

    def measure(self, target: Target, seed: int, progress: Progress) -> ProbeResult:
        return ProbeResult({"extra": {"examples": target.observation.knows.examples, "drawn": seed}})


@dataclass(frozen=True, eq=False)
class Later:
    """A target that is made by whoever plays it, or can not be."""

    made: Target | None

    def target(self) -> Target:
        if self.made is None:
            raise AuditError("The clients could not train.")
        return self.made


def case(key: str, title: str = "") -> Case[str]:
    return Case(key, title, Count(), 7, key, {**FACTS, "extra": {"table": "t"}})


def played(
    cases: Sequence[Case[str]], directory: Path, made: dict[str, Target | None], executor: Executor
) -> dict[str, Record]:
    def prepared(todo: Sequence[Case[str]]) -> list[Work]:
        return [Work(each, Later(made[each.subject]).target, torch.device("cpu")) for each in todo]

    play_unfinished(cases, directory, executor, prepared, AuditProgress())
    return {record.key: record for record in RecordFile(directory / RECORDS).read()}


@pytest.mark.parametrize("executor", [InProcess(), Processes(2)])
def test_targets_are_made_where_they_are_played(
    executor: Executor, make_job: Callable[..., Job], tmp_path: Path
) -> None:
    (target, _) = make_job().sources[0].targets(lambda done, total: None)
    records = played([case("good"), case("bad")], tmp_path, {"good": target, "bad": None}, executor)
    good, bad = records["good"], records["bad"]
    assert good.extra == {"table": "t", "examples": 1, "drawn": 7}
    assert (good.client, good.status) == ("client 0", "done")
    assert good.knows["examples"].text == "1 behind the message"
    assert (bad.status, bad.error, bad.client) == ("failed", "The clients could not train.", "0")
    assert bad.extra == {"table": "t"}


def test_a_key_is_played_once_for_whoever_asked_first(make_job: Callable[..., Job], tmp_path: Path) -> None:
    (target, _) = make_job().sources[0].targets(lambda done, total: None)
    cases = [case("a", "first"), case("a", "second"), case("b")]
    assert [each.title for each in unfinished_cases(cases, tmp_path)] == ["first", ""]
    played(cases, tmp_path, {"a": target, "b": None}, InProcess())
    assert [each.key for each in unfinished_cases(cases, tmp_path)] == ["b"], "what failed is tried again"
    assert len(RecordFile(tmp_path / RECORDS).history()) == 2
