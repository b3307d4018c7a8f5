"""The README's examples are run as they stand."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

import pytest

from fedglass.plan.compile import compile_plan
from fedglass.plan.schema import parse_plan

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, flags=re.DOTALL | re.MULTILINE)


PROGRAMS = [block for block in blocks("python") if not block.startswith(">>>")]
DIALOGUES = [block for block in blocks("python") if block.startswith(">>>")]


def test_the_programs_run_one_after_another_and_write_a_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert len(PROGRAMS) == 2
    known = {"__name__": "readme"}
    for program in PROGRAMS:
        exec(compile(program, "README.md", "exec"), known)
        assert "recovered" in capsys.readouterr().out
    assert "</html>" in (tmp_path / "audits" / "readme.html").read_text(encoding="utf-8")


def test_the_dialogues_print_what_they_say() -> None:
    parser, runner = doctest.DocTestParser(), doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    tests = [parser.get_doctest(block, {}, "README.md", "README.md", 0) for block in DIALOGUES]
    assert sum(len(test.examples) for test in tests) >= 2
    for test in tests:
        assert runner.run(test).failed == 0


def test_the_plan_is_sound() -> None:
    (plan,) = blocks("toml")
    job = compile_plan(parse_plan(plan), ROOT)
    assert len([case for case in job.cases if case.facts["attack"] in job.attacks]) == 4


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_to_files_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#\s]+)", page.read_text(encoding="utf-8"))
    assert [link for link in links if "://" not in link and not (page.parent / link).exists()] == []
