"""A re-creation from a table to its page, and again from where it was stopped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from fedglass.attack.solvers.schedules import SearchStates
from fedglass.audit import play
from fedglass.audit.play import unfinished_cases, was_cut_short
from fedglass.audit.target import Case
from fedglass.core.errors import DataError, UsageError
from fedglass.core.types import Training
from fedglass.execution.executor import InProcess
from fedglass.execution.processes import Processes
from fedglass.reproduce.cases import Cell, ClientTrial, cases_of, cells
from fedglass.reproduce.charts import write_recreation
from fedglass.reproduce.compare import ComparedCell, compare_cells, describe_spread, number, remarks
from fedglass.reproduce.image_sources import populations
from fedglass.reproduce.paper import WarmUp
from fedglass.reproduce.probes.geometry import Geometry
from fedglass.reproduce.run import (
    STATES,
    TRAINED,
    cases_without_network,
    describe_cost,
    experiment_seconds,
    ready_to_run,
    run,
)
from fedglass.reproduce.tables import Printed, Request, figure, mean_and_spread, table
from fedglass.verdict.directory import RECORDS, RecordFile, alone
from fedglass.verdict.judge import Verdict
from fedglass.verdict.records import Record


class Heard:
    """Remembers what was said."""

    def __init__(self) -> None:
        self.ran: list[str] = []
        self.plan: tuple[int, int] = (0, 0)

    def planned(self, cases: int, done: int) -> None:
        self.plan = cases, done

    def trained(self, name: str, done: int, total: int) -> None: ...

    def started(self, case: Case[ClientTrial]) -> None:
        self.ran.append(case.key)

    def moved(self, case: Case[ClientTrial], done: int, total: int) -> None: ...

    def finished(self, case: Case[ClientTrial], record: Record) -> None: ...

    def decided(self, verdict: Verdict) -> None: ...


def chosen(name: str, rows: Sequence[int], methods: Sequence[str], clients: int = 1, iterations: int = 2) -> list[Cell]:
    of = table(name)
    found = populations(["femnist", "cifar100"], [], None, seed=0)
    return cells(of, [of.rows[i - 1] for i in rows], methods, clients, found, Request(iterations), 0)


@pytest.fixture(scope="module")
def recreated(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Cell], dict[str, Record], Heard]:
    directory, heard = tmp_path_factory.mktemp("reproduced"), Heard()
    asked = chosen("sme-table2", [1], ["ig", "sme"])
    return directory, asked, run(asked, directory, InProcess(), heard), heard


def test_records_hold_what_the_table_shows(
    recreated: tuple[Path, list[Cell], dict[str, Record], Heard],
) -> None:
    directory, asked, records, heard = recreated
    assert heard.plan == (2, 0)
    assert len(RecordFile(directory / RECORDS).read()) == 2
    for cell in asked:
        record = records[cell.cases[0].key]
        assert (record.status, record.attack, record.oracle) == ("done", cell.method, True)
        assert len(record.metrics["psnr"]) == 10
        measures = record.extra["measures"]
        assert isinstance(measures, dict)
        assert set(measures) == {"psnr", "recovered", "lsim", "label_errors", "guess_psnr"}
        assert record.extra["stand_in"] is True
        assert record.seconds > 0
        strips = record.extra["strips"]
        assert isinstance(strips, dict)
        assert all((directory / str(strips[name])).is_file() for name in ("original", "reconstruction"))


def test_nothing_finished_is_run_again(recreated: tuple[Path, list[Cell], dict[str, Record], Heard]) -> None:
    directory, asked, records, _ = recreated
    heard = Heard()
    assert unfinished_cases(cases_of(asked), directory) == []
    assert run(asked, directory, InProcess(), heard) == records
    assert (heard.plan, heard.ran) == ((2, 2), [])


def test_only_what_is_missing_is_run(recreated: tuple[Path, list[Cell], dict[str, Record], Heard]) -> None:
    directory, asked, records, _ = recreated
    elsewhere = directory.parent / f"{directory.name}-stopped"
    elsewhere.mkdir()
    kept = records[asked[0].cases[0].key]
    RecordFile(elsewhere / RECORDS).append(kept)
    heard = Heard()
    found = run(asked, elsewhere, InProcess(), heard)
    assert heard.ran == [asked[1].cases[0].key]
    again = found[asked[1].cases[0].key]
    assert again.metrics == records[again.key].metrics, "a run does not depend on what was run before it"


def test_the_page_shows_numbers_data_and_pictures(
    recreated: tuple[Path, list[Cell], dict[str, Record], Heard],
) -> None:
    directory, asked, records, _ = recreated
    of = table("sme-table2")
    path = write_recreation(directory, figure("sme-table2"), of, asked, records, "fedglass reproduce <x>")
    html = path.read_text()
    assert path.name == "sme-table2.html"
    assert "STAND-IN</span> for FEMNIST: drawn characters" in html
    assert "paper\u00a030.3\u00a0±\u00a00.3" in html
    assert "2 of 2 runs are done" in html
    assert html.count("data:image/png;base64") >= 3
    assert "Not as published: the option `iterations` of every attack was 2." in html
    assert "fedglass reproduce &lt;x&gt;" in html


def test_failures_are_recorded_shown_and_tried_again(tmp_path: Path) -> None:
    asked = chosen("sme-figure6", [4], ["ig"], iterations=1)
    broken = asked[0]
    case = broken.cases[0]
    record = Record(
        key=case.key,
        attack="ig",
        attack_repr="",
        view="",
        round=1,
        client="0",
        repeat=0,
        seed=0,
        status="failed",
        error="it broke",
    )
    RecordFile(tmp_path / RECORDS).append(record)
    assert [c.key for c in unfinished_cases(cases_of([broken]), tmp_path)] == [case.key]
    found = compare_cells(table("sme-figure6"), [broken], {case.key: record})
    assert (found[0].done, found[0].failed, found[0].measured["psnr"]) == (0, 1, "-")
    path = write_recreation(tmp_path, figure("sme-figure6"), table("sme-figure6"), [broken], {case.key: record}, "")
    assert "it broke" in path.read_text()


def test_records_do_not_depend_on_the_number_of_workers(
    recreated: tuple[Path, list[Cell], dict[str, Record], Heard], tmp_path: Path
) -> None:
    _, asked, here, _ = recreated
    apart = run(asked, tmp_path, Processes(2), Heard())
    assert [record.status for record in apart.values()] == ["done", "done"]
    assert {key: r.metrics for key, r in apart.items()} == {key: r.metrics for key, r in here.items()}


def test_spreads_are_of_the_papers_kind() -> None:
    error, deviation = table("sme-table2"), table("sme-table1")
    assert mean_and_spread([1.0, 3.0], error.deviation) == Printed(2.0, 1.0)
    assert mean_and_spread([1.0, 3.0], deviation.deviation) == Printed(2.0, pytest.approx(2**0.5))
    assert mean_and_spread([1.0], error.deviation) == Printed(1.0)
    assert mean_and_spread([], error.deviation) is None
    several, one = chosen("sme-table2", [1], ["ig"], 2), chosen("sme-table2", [1], ["ig"], 1)
    assert describe_spread(deviation, several) == "± standard deviation over clients"
    assert describe_spread(table("dlfa-table1"), several) == "± standard error over clients"
    assert describe_spread(error, one) == "of a single client, which has no spread"
    assert number("ReLU()", 0) == "ReLU()"


def test_hours_and_memory_come_from_the_record(
    recreated: tuple[Path, list[Cell], dict[str, Record], Heard],
) -> None:
    _, asked, records, _ = recreated
    record = records[asked[0].cases[0].key]
    own = {**records, record.key: record.model_copy(update={"seconds": 36.0, "peak_mib": 1000.0})}
    line: ComparedCell = compare_cells(table("sme-table3"), asked[:1], own)[0]
    assert (line.measured["hours"], line.measured["gigabytes"]) == ("1.00", "1.0")


def pretended(network: str, data: str, examples: int) -> float:
    """Stand in for the timing of a gradient, so that no test depends on the clock."""
    return 0.001 * examples


def test_the_estimate_grows_with_iterations_and_steps() -> None:
    def seconds(row: int, method: str, iterations: int) -> float:
        (cell,) = chosen("dlfa-table1", [row], [method], iterations=iterations)
        return experiment_seconds(cell.experiment, pretended)

    assert seconds(2, "prior", 1000) > 50 * seconds(2, "prior", 10)
    assert seconds(4, "prior", 1000) > 1.5 * seconds(2, "prior", 1000)
    assert seconds(4, "prior", 1000) > 3 * seconds(4, "fedsgd", 1000)
    assert describe_cost([], 2) == "Nothing is left to run."
    cases = [case for cell in chosen("sme-table2", [1], ["ig"], clients=3) for case in cell.cases]
    assert describe_cost(cases, 2, timer=pretended).startswith("3 runs, about ")


def refuse_damaged(asked: list[Cell], directory: Path) -> None:
    """A trained network that can not be read is to be deleted, and nothing else is asked of the user."""
    (path,) = (directory / TRAINED).iterdir()
    whole = path.read_bytes()
    (directory / RECORDS).rename(directory / "kept")
    for content in (whole[:100], whole[:-1]):
        path.write_bytes(content)
        with pytest.raises(DataError, match="is damaged and cannot be used: delete the file, and the network is trai"):
            run(asked, directory, InProcess(), Heard())
    path.write_bytes(whole)
    (directory / "kept").rename(directory / RECORDS)


def test_the_iterations_of_every_stage_are_said() -> None:
    asked = chosen("sme-table2", [1], ["ig", "fast", "dlfa-fast"], iterations=480)
    said = remarks(table("sme-table2"), asked, {})[0]
    assert said.startswith("Not as published: the option `iterations` of every attack was 480.")
    assert "Stages of this package's sme: 480 + 60 iterations" in said
    assert "Stages of this package's dlfa: 200 + 480 iterations" in said
    assert "Stages of IG" not in said


def test_one_command_at_a_time_in_a_directory(tmp_path: Path) -> None:
    heard = Heard()
    with alone(tmp_path), pytest.raises(UsageError, match="is running in the output directory"):
        run(chosen("sme-table2", [1], ["ig"]), tmp_path, InProcess(), heard)
    assert (heard.plan, heard.ran) == ((0, 0), [])


def test_fedleak_costs_two_evaluations_through_a_generator() -> None:
    plain, twice = (
        cells(of, of.rows[4:5], [method], 1, populations(["cifar10"], [], None, 0), Request(1000), 0)[0].experiment
        for of in [table("c2f-table1")]
        for method in ("invg", "fedleak")
    )
    local = pretended(plain.setup.network, plain.setup.data, 1)
    attacks = [experiment_seconds(experiment, pretended) - local for experiment in (plain, twice)]
    assert attacks[1] == pytest.approx(4 * attacks[0], rel=1e-6)


def test_later_rounds_say_how_far_the_network_was_trained(tmp_path: Path) -> None:
    cell = chosen("sme-table5", [2], ["geometry"])[0]
    warm_up = WarmUp(1, Training(0.1), examples=10, called=1)
    setup = replace(cell.experiment.setup, examples=2, training=Training(0.01), warm_up=warm_up)
    experiment = replace(cell.experiment, setup=setup, probe=Geometry(points=3))
    trial = replace(cell.cases[0].subject, experiment=experiment)
    case = replace(cell.cases[0], key="short", probe=experiment.probe, subject=trial)
    short = [replace(cell, experiment=experiment, cases=[case])]
    assert cases_without_network([case], tmp_path) == [case]
    records = run(short, tmp_path, InProcess(), Heard())
    assert cases_without_network([case], tmp_path) == []
    refuse_damaged(short, tmp_path)
    accuracy = records["short"].utility["accuracy"]
    assert accuracy is not None
    assert 0 <= accuracy <= 1
    said = " ".join(remarks(table("sme-table5"), short, records))
    assert f"{accuracy:.0%} after 1." in said
    assert "do not compare these rows by round" in said
    assert "about 19 %" in said
    assert not any("Accuracy" in words for words in remarks(table("sme-table2"), chosen("sme-table2", [1], ["ig"]), {}))


def test_a_run_that_was_cut_short_continues_where_it_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(play, "SearchStates", partial(SearchStates, every=0.0))
    asked = chosen("sme-table2", [1], ["ig"], iterations=4)
    (case,) = cases_of(asked)
    with ready_to_run(tmp_path / "stopped", InProcess()) as run_until:
        assert was_cut_short(run_until([case], Heard(), 0.0)[case.key]), "the time is over at the first report"
        assert list((tmp_path / "stopped" / STATES / case.key).rglob("*.safetensors"))
        resumed = run_until([case], Heard(), None)[case.key]
    whole = run(asked, tmp_path / "whole", InProcess(), Heard())[case.key]
    assert resumed.extra == whole.extra
    assert resumed.trace == whole.trace
    assert not list((tmp_path / "stopped" / STATES).iterdir())
