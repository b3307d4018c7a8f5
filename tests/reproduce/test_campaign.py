"""Campaigns: what runs first, what fits into the time, what is appended, and how they continue."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from fedglass.audit.target import AuditProgress
from fedglass.cli.main import cli
from fedglass.core.errors import UsageError
from fedglass.execution.executor import InProcess
from fedglass.reproduce.campaign import (
    Entry,
    PlannedRun,
    append_computed,
    cheapest_first,
    entries,
    plan_campaign,
    run_campaign,
)
from fedglass.reproduce.results import places_of, read_results, tally
from fedglass.reproduce.tables import choose_rows, table


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> list[PlannedRun]:
    """Two cheap runs and one that is said to take long, on embedded images that count as the user's own."""
    entry = Entry("dlfa-table2", "1", ("interpolated",), clients=2)
    ((_, runs),) = plan_campaign([entry], None, ["femnist=glyphs"], 0)
    return runs


def command(*words: object) -> Result:
    return CliRunner().invoke(cli, ["reproduce", "campaign", *map(str, words)])


def test_every_entry_names_rows_and_methods_of_its_table() -> None:
    for entry in entries():
        of = table(entry.table)
        assert choose_rows(of, [entry.rows] if entry.rows else [])
        assert entry.request(of)
        assert entry.why
        assert entry.clients >= 1


def test_entries_of_one_table_can_be_chosen() -> None:
    assert {entry.table for entry in entries(["sme-table2"])} == {"sme-table2"}
    with pytest.raises(UsageError, match="sme-table99"):
        entries(["sme-table99"])


def test_each_run_is_a_line_and_nothing_runs_twice(tmp_path: Path, planned: list[PlannedRun]) -> None:
    place, results = tmp_path / "out", tmp_path / "results"
    written = run_campaign(planned, place, results, InProcess(), 1, 1.0, AuditProgress())
    assert written.written == len(planned) == 2
    lines = read_results(results)
    assert [line.client for line in lines] == [0, 1]
    assert all(line.metrics["label_errors"] >= 0 for line in lines)
    assert str(tmp_path) not in (results / "dlfa.jsonl").read_text()
    text = (results / "dlfa.jsonl").read_text()
    (results / "dlfa.jsonl").write_text(text.replace(lines[0].key, "0" * 32))  # keys change with the classes of parts
    again = run_campaign(planned, tmp_path / "elsewhere", results, InProcess(), 1, 1.0, AuditProgress())
    assert again.written == 0
    assert len(read_results(results)) == 2


def test_runs_of_another_command_become_lines_without_a_new_run(tmp_path: Path, planned: list[PlannedRun]) -> None:
    place = tmp_path / "out"
    run_campaign(planned, place, tmp_path / "first", InProcess(), 1, 1.0, AuditProgress())
    before = (place / "records.jsonl").read_bytes()
    run_campaign(planned, place, tmp_path / "second", InProcess(), 1, 1.0, AuditProgress())
    assert (place / "records.jsonl").read_bytes() == before
    assert places_of(read_results(tmp_path / "first")) == places_of(read_results(tmp_path / "second"))


@pytest.mark.parametrize(("name", "met", "missed"), [("malicious-budgets", 7, 2), ("dlfa-table5", 13, 5)])
def test_what_is_computed_without_a_run_is_a_line_once(tmp_path: Path, name: str, met: int, missed: int) -> None:
    entry = Entry(name)
    assert plan_campaign([entry], None, [], 0) == [(entry, [])]
    assert append_computed([entry, Entry("sme-table2"), entry], tmp_path) == len(table(name).rows) * len(
        table(name).methods
    )
    assert append_computed([entry], tmp_path) == 0
    counts = tally(table(name), read_results(tmp_path))
    assert counts == {"met": met, "beaten": 0, "missed": missed, "not run": 0}


def test_the_cost_of_an_entry_is_estimated_when_its_turn_comes(planned: list[PlannedRun]) -> None:
    entry = Entry("dlfa-table2")
    timed: list[int] = []

    def timer(network: str, data: str, examples: int) -> float:
        timed.append(examples)
        return 1.0

    runs = [PlannedRun(run.cell, run.case, run.of, timer) for run in planned]
    order = cheapest_first([(entry, runs[:1]), (entry, runs[1:])])
    next(order)
    first = len(timed)
    assert first > 0
    next(order)
    assert len(timed) == 2 * first


def test_a_case_that_two_tables_have_is_run_once_and_is_a_line_of_both(tmp_path: Path) -> None:
    first, second = (
        plan_campaign([Entry(name, row, ("geometry",), 1)], None, ["femnist=glyphs"], 0)[0][1]
        for name, row in (("sme-table1", "3"), ("sme-table5", "1"))
    )
    for name, parts in (("together", [first + second]), ("in turn", [first, second])):
        for runs in parts:
            run_campaign(runs, tmp_path / name, tmp_path / f"results {name}", InProcess(), 1, 1.0, AuditProgress())
        lines = read_results(tmp_path / f"results {name}")
        assert [line.table for line in lines] == ["sme-table1", "sme-table5"]
        assert lines[0].metrics == lines[1].metrics
        assert "sme-table5 --rows 1" in lines[1].command
        assert len((tmp_path / name / "records.jsonl").read_text().splitlines()) == 1


def test_a_run_that_does_not_fit_is_passed_over(tmp_path: Path, planned: list[PlannedRun]) -> None:
    cheap, other = planned
    unit = PlannedRun(other.cell, other.case, other.of, lambda network, data, examples: 1.0).seconds
    slow = PlannedRun(other.cell, other.case, other.of, lambda network, data, examples: 1800.0 / unit)
    written = run_campaign([slow, cheap], tmp_path / "out", tmp_path / "results", InProcess(), 1, 0.25, AuditProgress())
    assert written.written == 1
    assert places_of(read_results(tmp_path / "results")) == {cheap.place}


def test_nothing_starts_after_the_time_is_over(tmp_path: Path, planned: list[PlannedRun]) -> None:
    times = iter([0.0, 3700.0])
    written = run_campaign(
        planned, tmp_path / "out", tmp_path / "results", InProcess(), 1, 1.0, AuditProgress(), lambda: next(times)
    )
    assert written.written == 0


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("--hours", 0), "--hours must be more than 0, got 0."),
        (("--hours", "-1"), "--hours must be more than 0, got -1."),
        (("--hours", 1, "--only", "sme-table99"), "sme-table99"),
        (("--hours", 1, "--stand-ins", "nowhere"), "no such folder"),
        (("--hours", 1, "--only", "sme-table4"), "has no images for"),
    ],
)
def test_bad_input_is_one_sentence(
    words: tuple[object, ...], reason: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("FEDGLASS_SHARED", raising=False)
    done = command(*words, "--results", tmp_path, "-o", tmp_path / "out", "--workers", 1)
    assert done.exit_code in (2, 3)
    assert reason in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_the_dry_run_lists_entries_with_their_cost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "fedglass.reproduce.campaign.entries",
        lambda only=(): [Entry("dlfa-table2", "1", ("before",), 1, {}, "a reason")],
    )
    done = command("--hours", 1, "--dry-run", "--data", "femnist=glyphs", "--results", tmp_path)
    assert done.exit_code == 0, done.output
    assert "dlfa-table2" in done.stdout
    assert "a reason" in done.stdout
