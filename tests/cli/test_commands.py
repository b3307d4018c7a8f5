"""What the commands do, and what they exit with."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.shell_completion import ShellComplete
from click.testing import Result

from fedglass.attack.attack import Attack
from fedglass.cli import plans as template
from fedglass.cli.main import cli
from fedglass.cli.plans import NAMED, UNREGISTERED, registered
from fedglass.cli.progress import utility_in_words
from fedglass.core.errors import AuditError
from fedglass.verdict.directory import RecordFile
from fedglass.verdict.records import Record

Run = Callable[..., Result]
Write = Callable[..., Path]
Changes = tuple[tuple[str, str], ...]

HELP = """
import sys
from click.testing import CliRunner
from fedglass.cli.main import cli
for arguments in (["--help"], ["--version"], *([name, "--help"] for name in cli.commands)):
    assert CliRunner().invoke(cli, arguments).exit_code == 0, arguments
assert len(cli.commands) >= 6
for slow in ("torch", "scipy", "pydantic", "rich.console", "jinja2", "PIL"):
    assert slow not in sys.modules, f"{slow} was imported for help alone"
"""


def test_help_does_not_wait_for_what_it_does_not_need() -> None:
    subprocess.run([sys.executable, "-c", HELP], check=True)


def test_the_package_runs_as_a_module() -> None:
    """Where the script's folder is not on the path."""
    done = subprocess.run([sys.executable, "-m", "fedglass", "list", "nothing"], capture_output=True, text=True)
    assert done.returncode == 2
    assert "nothing" in done.stderr


def test_help_teaches(fedglass: Run) -> None:
    top = fedglass("--help").output
    for words in ("First steps", "fedglass init plan.toml", "Exit codes", "LEAK or EXPOSED"):
        assert words in top
    for name in ("demo", "init", "check", "audit", "report", "list"):
        assert "Example" in fedglass(name, "--help").output


def test_from_init_to_check(fedglass: Run, tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    assert fedglass("init", path).exit_code == 0
    checked = fedglass("check", path)
    assert checked.exit_code == 0
    words = " ".join(checked.output.split())  # the terminal breaks lines where it likes
    assert "is sound" in words
    assert "labels: not known" in words


def test_init_does_not_overwrite_unless_told(fedglass: Run, tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    path.write_text("mine")
    refused = fedglass("init", path)
    assert refused.exit_code == 2
    assert "--force" in refused.stderr
    assert path.read_text() == "mine"
    assert fedglass("init", path, "--force").exit_code == 0
    assert "[federation]" in path.read_text()


def test_a_passed_gate_exits_with_0_and_a_failed_one_with_1(
    fedglass: Run, write_plan: Write, leaking: Changes, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    passed = fedglass("audit", write_plan(*leaking[:1]), "-o", out, "--workers", 1, "--device", "cpu")
    assert passed.exit_code == 0, passed.output
    assert f"Report: {out / 'report.html'}" in passed.stdout
    failed = fedglass("audit", write_plan(*leaking), "-o", out, "--workers", 1)
    assert failed.exit_code == 1
    assert "LEAK FOUND" in failed.stdout
    assert "8 of 8 cases are done already" in failed.stderr


def test_an_audit_that_can_not_tell_exits_with_3_unless_the_plan_chooses_otherwise(
    fedglass: Run, write_plan: Write, tmp_path: Path
) -> None:
    out, choice = tmp_path / "out", "inconclusive_fails = false"
    for changes, code in ([(choice, "")], 3), ([(choice, "inconclusive_fails = true")], 3), ([], 0):
        done = fedglass("audit", write_plan(*changes), "-o", out, "--workers", 1)
        assert done.exit_code == code
        assert "INCONCLUSIVE" in done.stdout
        assert ("inconclusive_fails = false" in (out / "report.html").read_text()) is (code == 0)


def test_what_every_audit_does_is_announced(fedglass: Run, write_plan: Write) -> None:
    told = " ".join(fedglass("check", write_plan()).stdout.split())
    assert "Exact attacks, the candidate game and the check of each message run first." in told


def test_an_audit_that_can_not_complete_exits_with_3(
    fedglass: Run, write_plan: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object, **more: object) -> None:
        raise AuditError("it went wrong <b>here</b>")

    out = tmp_path / "out"
    with monkeypatch.context() as patch:
        patch.setattr(Attack, "run", fail)
        broken = fedglass("audit", write_plan(), "-o", out, "--workers", 1)
    assert broken.exit_code == 3
    assert "2 of 8 cases failed" in broken.stdout
    assert "<b>here</b>" not in (out / "report.html").read_text()
    assert fedglass("audit", write_plan(), "-o", out, "--workers", 1).exit_code == 0


def test_ctrl_c_is_a_hint_and_not_a_verdict(
    fedglass: Run, write_plan: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*arguments: object, **more: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Attack, "run", interrupt)
    stopped = fedglass("audit", write_plan(), "-o", tmp_path / "out", "--workers", 1)
    assert stopped.exit_code == 3
    assert "run the same command again" in stopped.stderr


def test_no_resume_refuses_records(fedglass: Run, write_plan: Write, tmp_path: Path) -> None:
    out, plan = tmp_path / "out", write_plan()
    assert fedglass("audit", plan, "-o", out, "--workers", 1, "--no-resume").exit_code == 0
    again = fedglass("audit", plan, "-o", out, "--workers", 1, "--no-resume")
    assert again.exit_code == 2
    assert "already holds the records of an audit" in again.stderr


def test_a_report_is_written_again(fedglass: Run, write_plan: Write, tmp_path: Path) -> None:
    out = tmp_path / "out"
    fedglass("audit", write_plan(), "-o", out, "--workers", 1)
    page = (out / "report.html").read_text()
    (out / "report.html").unlink()
    assert fedglass("report", out).exit_code == 0
    assert (out / "report.html").read_text() == page
    assert fedglass("report", out, "-o", tmp_path / "copy.html").exit_code == 0
    assert (tmp_path / "copy.html").read_text() == page


@pytest.mark.parametrize("kind", [*NAMED, *UNREGISTERED])
def test_everything_can_be_listed(kind: str, fedglass: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    entries = UNREGISTERED[kind]() if kind in UNREGISTERED else registered(kind)
    short, long = fedglass("list", kind), fedglass("list", kind, "--long")
    assert short.exit_code == long.exit_code == 0
    assert fedglass("list", kind, "-q").output.splitlines() == [entry["name"] for entry in entries]
    for entry in entries:
        assert f"{entry['name']}  " in short.stdout
        assert f"{entry['name']}\n" in long.stdout
        words = " ".join(long.stdout.split())
        assert all(" ".join(text.split()) in words for text in entry.values())
    assert len(entries) > (kind not in UNREGISTERED), "a kind has built-in parts"


def test_without_a_kind_only_the_names_are_listed(fedglass: Run) -> None:
    listed = fedglass("list").stdout
    for kind in (*NAMED, *UNREGISTERED):
        (names,) = re.findall(rf"^{kind.upper()}\n((?:  .*\n)+)", listed, re.MULTILINE)
        assert " ".join(names.split()) == ", ".join(fedglass("list", kind, "-q").output.split())
    long = fedglass("list", "--long").stdout
    assert fedglass("list", "rules", "--long").stdout in long
    assert len(listed.splitlines()) < len(long.splitlines()) / 10


def test_the_attacks_are_listed_with_their_papers(fedglass: Run) -> None:
    listed = fedglass("list", "attacks", "--long").output
    assert "https://arxiv.org/abs/2003.14053" in listed
    assert "tv=0.01" in listed
    assert "from: built in" in listed


@pytest.mark.parametrize(
    ("typed", "meant"), [("aduit", "`audit`"), ("chek", "`check`"), ("train difusion", "`train diffusion`")]
)
def test_a_misspelt_command_is_corrected(typed: str, meant: str, fedglass: Run) -> None:
    refused = fedglass(*typed.split())
    assert refused.exit_code == 2
    assert refused.stderr == f"fedglass: There is no command `{typed}`. Did you mean {meant}?\n"


def test_an_unknown_command_leads_to_the_help(fedglass: Run) -> None:
    assert fedglass("qqqq").stderr == "fedglass: There is no command `qqqq`. `fedglass --help` lists all commands.\n"


def test_the_shell_completes_commands_options_and_kinds() -> None:
    def completed(words: list[str], start: str) -> list[str]:
        shell = ShellComplete(cli, {}, "fedglass", "_FEDGLASS_COMPLETE")
        return [item.value for item in shell.get_completions(words, start)]

    assert completed([], "au") == ["audit"]
    assert completed(["list"], "at") == ["attacks"]
    assert "--minutes" in completed(["audit"], "--")


def test_a_pipe_gets_no_colours(write_plan: Write) -> None:
    for arguments in (["check", str(write_plan())], ["list"], ["list", "rules", "--long"]):
        run = subprocess.run([sys.executable, "-m", "fedglass", *arguments], capture_output=True, text=True, check=True)
        assert run.stdout
        assert "\x1b" not in run.stdout + run.stderr


def test_check_describes_what_advise_compares(fedglass: Run, write_plan: Write) -> None:
    more = '[advise]\nstrengths = 3\nseeds = 2\n[[advise.chain]]\ndefences = { name = "clip" }\n[gate]'
    plan = write_plan(("examples = 1\n", "examples = 1\ntest_examples = 2\n"), ("[gate]", more))
    words = " ".join(fedglass("check", plan).stdout.split())
    assert "This is a plan for fedglass advise" in words
    assert "clip, norm from 10 to 0.001." in words
    assert "At most 3 strengths of each, on 2 seeds: 6 federations." in words
    refused = fedglass("check", write_plan(("[gate]", more)))
    assert refused.exit_code == 2
    assert "set federation.test_examples" in " ".join(refused.stderr.split())


def test_only_a_simulation_is_told_to_set_test_examples() -> None:
    record = Record(
        key="a",
        attack="exact",
        attack_repr="",
        view="",
        round=1,
        client="0",
        repeat=0,
        seed=0,
        status="done",
        defences=["Defended by Clip(norm=1.0)."],
    )
    assert utility_in_words([record], simulated=False) == ["Defended by Clip(norm=1.0)."]
    (line,) = utility_in_words([record], simulated=True)
    assert line.endswith("Utility: not measured, set federation.test_examples.")


def test_check_speaks_in_sentences(fedglass: Run, write_plan: Write) -> None:
    """No line is a Python value, and none warns of a metric that the plan has not asked for."""
    metrics = 'names = ["psnr", "ssim"]'
    plan = write_plan((metrics, ""), ("[gate]", '[[defences]]\nname = "clip"\nnorm = 1.0\n[gate]'))
    said = fedglass("check", plan).stdout
    assert not re.search(r"\w\(|=|None|True", said.replace("(exit code", ""))
    assert "inverting_gradients (3 iterations): cosine distance and total variation" in said
    assert "clip (norm 1): the update scaled down" in said
    assert "LPIPS" not in said
    asked = fedglass("check", write_plan((metrics, 'names = ["psnr", "lpips"]'))).stdout
    assert "lpips is left out. LPIPS needs network weights" in " ".join(asked.split())


def test_an_unknown_kind_is_bad_usage(fedglass: Run) -> None:
    assert fedglass("list", "nonsense").exit_code == 2


def test_a_fault_of_fedglass_is_not_a_verdict() -> None:
    code = (
        "import sys; from fedglass.cli import main\n"
        "main.cli.commands['report'].callback = lambda **more: 1 / 0\n"
        "sys.argv = ['fedglass', 'report', 'x']\n"
        "main.main()"
    )
    crashed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert crashed.returncode == 3
    assert "ZeroDivisionError" in crashed.stderr


def test_the_demo_exits_with_0_and_says_what_a_pipeline_would_see(
    fedglass: Run, write_plan: Write, leaking: Changes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(template, "DEMO", write_plan(*leaking).read_text())
    monkeypatch.setattr(template, "PEER_DEMO", write_plan(*leaking).read_text())
    shown = fedglass("demo", "-o", tmp_path / "demo", "--workers", 1)
    assert shown.exit_code == 0
    assert "would exit with 1" in shown.stdout
    assert f"Report: {tmp_path / 'demo' / 'report.html'}" in shown.stdout
    assert f"Report: {tmp_path / 'demo' / 'peer' / 'report.html'}" in shown.stdout


def test_a_dry_run_estimates_and_writes_nothing(fedglass: Run, write_plan: Write, tmp_path: Path) -> None:
    dry = fedglass("audit", write_plan(), "-o", tmp_path / "out", "--dry-run", "--workers", 1)
    assert dry.exit_code == 0
    assert re.search(r"inverting_gradients: about \d+ (s|min) for each case\.", dry.stdout)
    assert "All 2 searches take about" in dry.stdout
    assert not (tmp_path / "out").exists()


def test_without_minutes_no_search_runs_and_one_sentence_says_so(
    fedglass: Run, write_plan: Write, tmp_path: Path
) -> None:
    arguments = ("audit", write_plan(), "-o", tmp_path / "out", "--workers", 1)
    stopped = fedglass(*arguments, "--minutes", 0)
    assert stopped.exit_code == 3
    assert stopped.stderr.count("With --minutes 0 no search runs") == 1
    assert "2 planned cases not run yet" in stopped.stdout
    assert fedglass(*arguments).exit_code == 0


def test_a_baseline_changes_the_exit_code_and_is_printed(
    fedglass: Run, write_plan: Write, leaking: Changes, tmp_path: Path
) -> None:
    arguments = ("audit", write_plan(*leaking), "-o", tmp_path / "out", "--workers", 1, "--json")
    assert fedglass(*arguments).exit_code == 1
    records = RecordFile(tmp_path / "out" / "records.jsonl").read()
    entry = '[[accepted]]\nrecord = "{}"\nreason = "a test"\nexpires = 2999-12-31\n'
    accepted = tmp_path / "accepted.toml"
    accepted.write_text("".join(entry.format(record.key) for record in records if record.kind != "game"))
    told = fedglass(*arguments, "--baseline", accepted)
    assert told.exit_code == 0
    assert json.loads(told.stdout)["state"] == "leak"
    assert (
        "Accepted until 2999-12-31 (a test): leak"
        in fedglass("report", tmp_path / "out", "--baseline", accepted).stdout
    )
    accepted.write_text("accepted = 1")
    assert fedglass(*arguments, "--baseline", accepted).exit_code == 2
