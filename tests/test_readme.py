"""Examples of the README and of pages for users are run as they stand, and their links lead somewhere."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

import pytest

from fedglass.plan.compile import compile_plan
from fedglass.plan.schema import Plan, parse_plan

ROOT = Path(__file__).parents[1]
DOCS = sorted((ROOT / "docs").glob("*.md"))
EXAMPLES = sorted((ROOT / "examples").glob("*/README.md"))
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *EXAMPLES, *DOCS]


def blocks(page: str, language: str) -> list[str]:
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)


PROGRAMS = blocks("python.md", "python")
DIALOGUES = [block for block in blocks("attacks.md", "python") if block.startswith(">>>")]


def test_the_programs_run_one_after_another_and_write_a_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert len(PROGRAMS) == 2
    known = {"__name__": "page"}
    for program in PROGRAMS:
        exec(compile(program, "python.md", "exec"), known)
        assert "recovered" in capsys.readouterr().out
    assert "</html>" in (tmp_path / "audits" / "readme.html").read_text(encoding="utf-8")


def test_the_dialogues_print_what_they_say() -> None:
    parser, runner = doctest.DocTestParser(), doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    tests = [parser.get_doctest(block, {}, "attacks.md", "attacks.md", 0) for block in DIALOGUES]
    assert sum(len(test.examples) for test in tests) >= 2
    for test in tests:
        assert runner.run(test).failed == 0


def test_the_plan_is_sound() -> None:
    (plan,) = blocks("adversaries.md", "toml")
    job = compile_plan(parse_plan(plan), ROOT)
    assert len([case for case in job.cases if case.facts["attack"] in job.attacks]) == 4


@pytest.mark.parametrize(
    "plan", [b for page in DOCS for b in blocks(page.name, "toml") if b.startswith("[federation]")]
)
def test_plans_on_pages_are_sound(plan: str) -> None:
    assert compile_plan(parse_plan(plan), ROOT).cases


@pytest.mark.parametrize("page", DOCS, ids=lambda page: page.name)
def test_tables_on_pages_have_keys_of_a_plan(page: Path) -> None:
    """A part of a plan without a recording is completed with a federation; what is left must be sound."""
    for block in blocks(page.name, "toml"):
        table = re.match(r"\[+(\w+)", block)
        if table is not None and table[1] in Plan.model_fields and table[1] != "federation":
            federation = '[federation]\ndata = "photos"\ntraining = { lr = 0.1 }\n'
            parse_plan(block if table[1] == "recording" else federation + block)


def test_verdicts_that_a_page_repeats_are_those_of_the_table() -> None:
    def rows(page: str) -> dict[str, list[str]]:
        lines = (ROOT / "docs" / page).read_text(encoding="utf-8").splitlines()
        cells = ([cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| "))
        return {name: rest for name, *rest in cells if rest[0] != "said" and rest[1] != "said"}

    said = {name: [rest[1], *rest[3:5]] for name, rest in rows("verdicts.md").items()}
    repeated = rows("questions.md")
    assert len(repeated) >= 9
    assert {name: said[name] for name in repeated} == repeated


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_to_files_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#\s]+)", page.read_text(encoding="utf-8"))
    assert [link for link in links if "://" not in link and not (page.parent / link).exists()] == []


def test_every_page_is_in_the_navigation_and_links_to_nothing_outside_of_the_site() -> None:
    """`make docs` demands the same, in an environment of its own."""
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[2]
    assert sorted(re.findall(r"[\w/-]+\.md", navigation)) == [page.name for page in DOCS]
    for page in DOCS:
        assert "](../" not in page.read_text(encoding="utf-8"), page
