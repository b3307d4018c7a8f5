"""`fedglass reproduce` on the command line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from fedglass.cli.main import cli


@pytest.fixture(autouse=True)
def _no_stand_ins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FEDGLASS_SHARED", raising=False)


def call(*arguments: str | Path) -> Result:
    return CliRunner().invoke(cli, ["reproduce", *map(str, arguments)])


def test_list_names_every_table_and_figure() -> None:
    found = call("list")
    assert found.exit_code == 0
    for name in [f"dlfa-table{i}" for i in range(1, 12)] + [f"sme-table{i}" for i in range(1, 8)] + ["sme-figure3"]:
        assert f"{name} " in found.output


def test_list_of_one_shows_its_rows_and_methods() -> None:
    found = call("list", "dlfa-table1")
    assert "65.5" in found.output
    assert "--methods no-prior: Ours (no prior)" in found.output
    assert "--methods printed: Ours (prior), as printed (not in the paper)" in found.output


def test_listing_does_not_wait_for_torch() -> None:
    code = "import sys; from fedglass.reproduce.tables import names; import fedglass.cli.reproduce; names()"
    subprocess.run([sys.executable, "-c", f"{code}; assert 'torch' not in sys.modules"], check=True)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["dlfa-tabel1"], "Unknown table or figure 'dlfa-tabel1': did you mean 'dlfa-table1'?"),
        (["dlfa-table1", "--clients", "0"], "clients must be at least 1, got 0"),
        (["dlfa-table1", "--rows", "11"], "rows must be numbers from 1 to 10"),
        (["dlfa-table1", "--methods", "priors"], "Unknown method 'priors': did you mean 'prior'?"),
        (["dlfa-table1", "--data", "/no/such.json"], "No such file or folder: '/no/such.json'"),
        (["dlfa-table1", "--stand-ins", "/no/such"], "no such folder: '/no/such'"),
        (["dlfa-table1", "--rows", "1", "--clients", "51", "--dry-run"], "there are 50: ask for at most --clients 50"),
        (["dlfa-table10", "--rows", "3", "--clients", "13", "--dry-run"], "ask for at most --clients 12"),
        (["dlfa-table1", "dlfa-table2"], "Expected one table or figure"),
        (["list", "sme-tabel2"], "did you mean 'sme-table2'"),
    ],
)
def test_bad_requests_are_refused_in_words(arguments: list[str], words: str) -> None:
    found = call(*arguments)
    assert found.exit_code == 2
    assert words in found.output


def test_a_dry_run_says_the_cost_and_writes_nothing(tmp_path: Path) -> None:
    found = call("sme-table2", "--rows", "1", "--clients", "2", "--dry-run", "-o", tmp_path / "out")
    assert found.exit_code == 0
    assert "6 runs, " in found.output
    assert "STAND-IN for FEMNIST" in found.output
    assert not (tmp_path / "out").exists()


def test_a_dry_run_refuses_data_that_are_too_few(tmp_path: Path) -> None:
    user = {"x": [[0.5] * 784] * 9, "y": [1] * 9}
    (tmp_path / "all.json").write_text(json.dumps({"users": ["a"], "num_samples": [9], "user_data": {"a": user}}))
    found = call("sme-table2", "--rows", "1", "--clients", "1", "--data", f"leaf:{tmp_path / 'all.json'}", "--dry-run")
    assert found.exit_code == 2
    assert "there are 1, of whom 0 have 10 images or more" in found.output


def test_the_help_says_what_iterations_are() -> None:
    words = " ".join(call("--help").output.split())
    assert (
        "Iterations of each recipe. Warm-up and finishing stages keep their own unless the page says otherwise."
        in words
    )


def test_a_table_is_recreated_and_not_repeated(tmp_path: Path) -> None:
    request = ["sme-table2", "--rows", "1", "--methods", "sme", "--clients", "1", "--iterations", "2"]
    first = call(*request, "-o", tmp_path, "--workers", "1")
    assert first.exit_code == 0, first.output
    assert "30.3 ± 0.3" in first.output
    assert "Measured: mean of a single client, which has no spread." in first.output
    assert "STAND-IN for FEMNIST: drawn characters" in first.output
    assert (tmp_path / "sme-table2.html").is_file()
    again = call(*request, "-o", tmp_path, "--workers", "1")
    assert "1 of 1 runs are done already" in again.output
    quiet = call(*request, "-o", tmp_path, "--workers", "1", "--json", "-q")
    assert quiet.stderr == ""
    told = json.loads(quiet.stdout)
    (row,) = told["rows"]
    assert row["paper"]["psnr"] == {"mean": 30.3, "spread": 0.3}
    assert f"{row['measured']['psnr']['mean']:.1f}" in first.output
    assert (row["method"], row["measured"]["psnr"]["spread"], row["runs"]["done"]) == ("sme", None, 1)
    assert Path(told["paths"]["page"]) == tmp_path / "sme-table2.html"
    assert (tmp_path / "records.jsonl").read_bytes().count(b"\n") == 1


def test_the_architectures_are_compared_layer_by_layer() -> None:
    found = call("dlfa-table5")
    assert found.exit_code == 0
    assert "in_features=3136" in found.output
    assert "in_features=5184" in found.output


def test_a_figure_is_made_of_the_runs_of_its_table(tmp_path: Path) -> None:
    found = call("sme-figure13", "--clients", "1", "--rows", "3", "--methods", "ig", "--dry-run", "-o", tmp_path)
    assert found.exit_code == 0
    assert "sme-figure13: images at E = 10, N = 50 in later rounds" in found.output
    assert "1 run, " in found.output
