"""Results as JSON lines: reading, appending, the comparison with the paper, and the page that is made of them."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner

from fedglass.cli.main import cli
from fedglass.core.errors import UsageError
from fedglass.reproduce.results import MeasuredLine, Result, append_result, lines_of, outcome, read_results, tally
from fedglass.reproduce.results_page import page, read_findings, tables_of
from fedglass.reproduce.tables import Printed, table

DOCS = Path(__file__).parents[2] / "docs"
RESULTS, FINDINGS = DOCS / "reproduction" / "results", DOCS / "reproduction" / "findings"


def result(client: int | None = 0, psnr: float = 30.0, **fields: object) -> Result:
    values: dict[str, object] = {
        "table": "sme-table2",
        "row": 1,
        "method": "ig",
        "client": client,
        "seed": 0,
        "metrics": {"psnr": psnr, "guess_psnr": 11.0},
        "data": "digits",
        "stand_in": True,
        "version": "0.1.0",
        "command": "fedglass reproduce sme-table2",
        "date": None,
        "key": f"key {client}",
    }
    return Result.model_validate({**values, **fields})


def test_what_is_appended_is_read_in_the_file_of_its_paper(tmp_path: Path) -> None:
    append_result(tmp_path, result(0))
    append_result(tmp_path, result(1, table="dlfa-table1", method="prior"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["dlfa.jsonl", "sme.jsonl"]
    assert sorted(line.table for line in read_results(tmp_path)) == ["dlfa-table1", "sme-table2"]


def test_the_same_run_twice_counts_once(tmp_path: Path) -> None:
    append_result(tmp_path, result(0, 30.0))
    append_result(tmp_path, result(0, 31.0))
    (line,) = read_results(tmp_path)
    assert line.metrics["psnr"] == 31.0


@pytest.mark.parametrize(
    ("edited", "reason"),
    [
        ("not json", "line: "),
        ('{"table": "sme-table2"}', "row: Field required"),
        (result(0, row=99).model_dump_json(), "rows 1 to 12, got row 99"),
        (result(0, table="sme-table99").model_dump_json(), "sme-table99"),
    ],
)
def test_an_edited_line_is_named_and_skipped(tmp_path: Path, edited: str, reason: str) -> None:
    append_result(tmp_path, result(0))
    with (tmp_path / "sme.jsonl").open("a") as file:
        file.write(edited + "\n")
    append_result(tmp_path, result(1))
    problems = list[str]()
    assert [line.client for line in read_results(tmp_path, problems.append)] == [0, 1]
    (problem,) = problems
    assert "sme.jsonl line 2" in problem
    assert reason in problem


def test_a_torn_last_line_does_not_spoil_the_next(tmp_path: Path) -> None:
    append_result(tmp_path, result(0))
    with (tmp_path / "sme.jsonl").open("a") as file:
        file.write('{"table": "sme-')
    append_result(tmp_path, result(1))
    assert [line.client for line in read_results(tmp_path)] == [0, 1]


@pytest.mark.skipif(os.name != "posix", reason="Windows has no pipes of this kind")
def test_a_pipe_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "sme.jsonl")
    with pytest.raises(UsageError, match="Cannot read the results"):
        read_results(tmp_path)


def test_a_mean_within_five_percent_or_two_errors_is_met() -> None:
    paper = Printed(20.0)
    assert outcome("psnr", paper, Printed(19.1), 1, 1) == "met"
    assert outcome("psnr", paper, Printed(18.0, 1.5), 1, 3) == "missed"  # too few runs to trust the error
    assert outcome("psnr", paper, Printed(18.0, 1.5), 1, 5) == "met"
    assert outcome("lpips", Printed(0.5), Printed(0.4), 3, 1) == "beaten"
    assert outcome("lpips", Printed(0.4), Printed(0.5), 3, 1) == "missed"
    assert outcome("accuracy", Printed(50.0), Printed(60.0), 1, 1) == "missed"  # neither end is better


def test_a_line_is_missed_if_one_measure_is() -> None:
    of = table("sme-table2")
    line = MeasuredLine(of.rows[0], "ig", [result(0, 40.0, metrics={"psnr": 40.0, "lsim": 0.9})])
    assert line.verdict(of) == "missed"


def test_the_largest_runs_of_a_line_count_whatever_they_gave() -> None:
    of = table("sme-table2")
    small = [result(i, 27.8, iterations=100, options={"iterations": 100}, key=f"a{i}") for i in range(9)]
    large = [result(0, 10.0, iterations=1000, key="b")]
    first, second = lines_of(of, [*small, *large])
    assert first.results == large
    assert second.runs == 9
    assert tally(of, [*small, *large])["missed"] == 1


def test_figures_of_an_older_page_do_not_count_as_measured() -> None:
    of, old = table("sme-table2"), result(None, 27.8, runs=5, errors={"psnr": 0.5}, provenance="page", key="")
    assert tally(of, [old]) == {"met": 0, "beaten": 0, "missed": 0, "not run": 35}
    text = page([old], {})
    assert "27.8 ± 0.5" in text
    assert "older page" in text


def test_parts_of_an_average_are_averaged_before_clients() -> None:
    of = table("sme-table2")
    runs = [result(c, 20.0 + c + (p == "b"), part=p, key=f"{c}{p}") for c in (0, 2) for p in "ab"]
    (line,) = lines_of(of, runs)
    assert line.value("psnr") == Printed(21.5, 1.0)
    assert line.runs == 2
    assert line.guess("psnr") == Printed(11.0, 0.0)


def test_the_page_has_all_papers_and_their_tables() -> None:
    text = page([result(i, 30.0 + i) for i in range(3)], {"sme": "A finding."})
    assert "A finding." in text
    assert "| 31.0 ± 0.6 | 11.0 | 3 of 100 | – | beaten |" in text
    assert "Not run: dlfa rows 1 to 11; sme all rows; ig rows 2 to 12." in text
    assert "malicious-table4" in text


def test_what_a_paper_has_no_column_for_is_shown_where_it_was_measured() -> None:
    measured = result(0, 30.0).model_copy(update={"metrics": {"psnr": 30.0, "lpips": 0.1234, "hours": 1.0}})
    text = page([measured], {})
    assert "LPIPS: paper | measured | blind guess" in text
    assert "| – | 0.123 | – |" in text
    assert "hours" not in text.partition("### sme-table2")[2].partition("###")[0]


QUOTED = re.compile(r"(?<![\w.,])\d[\d,]*(?:\.\d+)?(?=\s?(?:%|dB))|(?<![\w.,])\d[\d,]*\.\d+(?![\w])")


def unsupported_numbers(paper: str, text: str, results: Sequence[Result]) -> list[str]:
    """Return the numbers of a findings text that are neither measured nor printed.

    A number counts if it has a decimal point, or stands before % or dB, and is not code.
    """
    known = set(_known_numbers(paper, results))
    quoted = [
        match[0].replace(",", "") for match in QUOTED.finditer(re.sub(r"```.*?```|`[^`]*`", "", text, flags=re.S))
    ]
    return [text for text in quoted if not any(_shows(text, value) for value in known)]


def _shows(text: str, value: float) -> bool:
    digits = len(text.partition(".")[2])
    return f"{abs(value):.{digits}f}" == f"{float(text):.{digits}f}"


def _known_numbers(paper: str, results: Sequence[Result]) -> Iterator[float]:
    for of in map(table, tables_of(paper)):
        for row in of.rows:
            for values in row.values.values():
                for printed in values.values():
                    if isinstance(printed, str):  # such as a range
                        yield from map(float, re.findall(r"\d+(?:\.\d+)?", printed))
                    elif printed is not None:
                        yield from (x for x in (printed.mean, printed.spread) if x is not None)
        for line in lines_of(of, results):
            for result in line.results:
                yield from (*result.metrics.values(), *result.errors.values())
            for name in {name for result in line.results for name in result.metrics}:
                value = line.value(name)
                if value is not None:
                    yield from (x for x in (value.mean, value.spread) if x is not None)


def test_unsupported_numbers_are_found() -> None:
    lines = [result(0, 30.04)]
    assert unsupported_numbers("sme", "We measured 30.0 dB and 40.0 dB; `sme(1.5)` and 3 clients.", lines) == ["40.0"]


def test_the_page_of_this_package_is_up_to_date_and_every_number_in_its_findings_is_measured_or_printed() -> None:
    problems = list[str]()
    results = read_results(RESULTS, problems.append)
    assert problems == []
    findings = read_findings(FINDINGS)
    assert (DOCS / "reproduction.md").read_text() == page(results, findings), (
        "run: fedglass reproduce page -o docs/reproduction.md"
    )
    for paper, text in findings.items():
        assert unsupported_numbers(paper, text, results) == [], paper


def test_the_command_writes_the_page_and_names_what_it_skips(tmp_path: Path) -> None:
    shutil.copytree(RESULTS, tmp_path / "results")
    with (tmp_path / "results" / "sme.jsonl").open("a") as file:
        file.write("edited\n")
    done = CliRunner().invoke(
        cli, ["reproduce", "page", "--results", str(tmp_path / "results"), "-o", str(tmp_path / "page.md")]
    )
    assert done.exit_code == 0, done.output
    assert "is not a result and was skipped" in done.stderr
    assert (tmp_path / "page.md").read_text().startswith("# Published numbers")
