"""An audit knows its time beforehand, stops when its time is over, and says what it knows at once."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from fedglass.audit import audit, cost, play
from fedglass.audit.audit import EarlyVerdict, Job, run
from fedglass.audit.cost import describe_time, estimate, gradient_seconds
from fedglass.audit.play import was_cut_short
from fedglass.audit.target import AuditProgress, Case
from fedglass.cli import progress as screens
from fedglass.cli.progress import AdviceScreen, Screen
from fedglass.recipes import recipe
from fedglass.verdict.directory import RECORDS, RecordFile
from fedglass.verdict.gate import Gate
from fedglass.verdict.judge import Verdict
from fedglass.verdict.records import Record

Make = Callable[..., Job]


@pytest.fixture
def steady(monkeypatch: pytest.MonkeyPatch) -> None:
    """A millisecond for every example."""
    monkeypatch.setattr(cost, "gradient_seconds", lambda model, shape, examples: 0.001 * examples)


def test_the_estimate_grows_with_the_work(steady: None, make_job: Make) -> None:
    short, long = estimate(make_job(iterations=5)), estimate(make_job(iterations=15))
    assert set(short.by_attack) == {"inverting_gradients", "idlg"}
    for name, seconds in short.by_attack.items():
        assert long.by_attack[name] == pytest.approx(3 * seconds)
    assert estimate(make_job(repeats=2)).total == pytest.approx(2 * short.total)
    assert short.wall_seconds(2) == pytest.approx(max(short.total / 2, *short.by_attack.values()))
    assert short.wall_seconds(1) == pytest.approx(short.total)


def test_guesses_are_added_up(steady: None, make_job: Make) -> None:
    once = estimate(make_job(attacks={"a": recipe("curious_client_search", iterations=10)}))
    twice = estimate(make_job(attacks={"a": recipe("curious_client_search", iterations=20)}))
    assert twice.by_attack.get("a", 0.0) == pytest.approx(2 * once.by_attack.get("a", 0.0))


def test_a_gradient_is_really_timed() -> None:
    assert gradient_seconds(nn.Sequential(nn.Flatten(), nn.Linear(16, 3)), (1, 4, 4), 2) > 0


def test_a_probe_that_fails_is_one_sentence(make_job: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object) -> float:
        raise RuntimeError("no memory")

    monkeypatch.setattr(cost, "gradient_seconds", fail)
    assert describe_time(make_job(), 2) == ["The time cannot be estimated: RuntimeError: no memory."]


def test_without_time_searches_wait_for_the_next_run(make_job: Make, tmp_path: Path) -> None:
    stopped = run(replace(make_job(), minutes=0.0), tmp_path / "a")
    assert stopped.searches == []
    assert stopped.verdict.state == "incomplete"
    assert "4 planned cases not run yet" in stopped.verdict.sentence
    rest = run(make_job(), tmp_path / "a")
    assert len(rest.searches) == 4
    assert [r.metrics for r in rest.searches] == [r.metrics for r in run(make_job(), tmp_path / "b").searches]


class SteppingClock:
    """A clock that moves on by a second whenever it is read."""

    perf_counter = staticmethod(time.perf_counter)

    def __init__(self) -> None:
        self._now = 0.0

    def time(self) -> float:
        self._now += 1.0
        return self._now


def test_a_search_that_was_cut_short_runs_again(
    make_job: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = replace(make_job(iterations=200), minutes=0.25)
    for _ in range(2):
        clock = SteppingClock()
        monkeypatch.setattr(audit, "time", clock)
        monkeypatch.setattr(play, "time", clock)
        stopped = run(job, tmp_path)
        (search,) = stopped.searches
        assert was_cut_short(search)
        assert stopped.verdict.state == "incomplete"
    history = RecordFile(tmp_path / RECORDS).history()
    assert [record.key for record in history].count(search.key) == 2


class Heard(AuditProgress):
    def __init__(self) -> None:
        self.verdicts: list[Verdict] = []

    def decided(self, verdict: Verdict) -> None:
        self.verdicts.append(verdict)


@pytest.mark.parametrize(("psnr", "max_share", "times"), [(40.0, 0.0, 1), (5.0, 0.0, 0), (40.0, 0.5, 0)])
def test_a_leak_is_said_once_and_at_once(psnr: float, max_share: float, times: int) -> None:
    fields = {"key": "a", "attack": "exact", "attack_repr": "x", "view": "v", "round": 1, "client": "0", "repeat": 0}
    record = Record.model_validate(
        {**fields, "seed": 0, "status": "done", "metrics": {"psnr": [psnr]}, "blind": {"psnr": [9.0]}}
    )
    heard = Heard()
    watch, case = EarlyVerdict(heard, Gate(max_share=max_share)), Case[Any]("a", "exact", None, 0, None)  # type: ignore[arg-type]  # unused
    watch.finished(case, record)
    watch.finished(case, record)
    assert [verdict.state for verdict in heard.verdicts] == ["leak"] * times


def test_without_a_terminal_a_line_says_how_far_it_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = [0.0]
    monkeypatch.setattr(screens.time, "monotonic", lambda: now[0])
    case = Case[Any]("a", "exact", None, 0, None)  # type: ignore[arg-type]  # unused
    screen = Screen("cases", lambda record: "done", seconds=100.0)
    assert screen.remaining() == 100.0  # an estimate from the start
    screen.planned(2, 0)
    screen.started(case)
    for second in range(0, 75, 5):
        now[0] = float(second)
        screen.moved(case, second, 100)
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(" done")[0] for line in lines] == ["15%", "30%"]
    assert lines[1] == "30% done after 60 s, about 2 min left."


def test_the_share_of_an_advice_is_that_of_the_whole_search_and_never_falls() -> None:
    screen = AdviceScreen(quiet=True)
    shares = []
    for number in (1, 2, 4):
        screen.setting_started("dpsgd", number, 4)
        shares.append(screen.share())
        for done in (1, 2):
            screen.planned(2, done)
            shares.append(screen.share())
        screen.planned(4, 2)  # the searches of the plan are added
        shares.append(screen.share())
    assert shares == [0, 0.125, 0.25, 0.25, 0.25, 0.375, 0.5, 0.5, 0.75, 0.875, 1, 1]
