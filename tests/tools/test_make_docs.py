"""The pages of the reference are those of the code."""

from __future__ import annotations

from pathlib import Path
from runpy import run_path

import pytest

from fedglass.cli.main import cli
from fedglass.core.registry import KINDS, built_in
from fedglass.verdict.doubts import DoubtKind

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
tool = run_path(str(ROOT / "tools" / "make_docs.py"))
PAGES = tool["pages"]()


@pytest.mark.parametrize("name", PAGES)
def test_the_page_is_up_to_date(name: str) -> None:
    """`python tools/make_docs.py` writes it anew."""
    assert (DOCS / name).read_text(encoding="utf-8") == PAGES[name]


def test_nothing_that_a_plan_names_is_left_out() -> None:
    text = "\n".join(PAGES.values())
    for kind, about in KINDS.items():
        if about.in_plans:
            assert built_in(kind), kind
            for name in built_in(kind):
                assert f"`{name}`" in text or f"`{name}:PATH`" in text, (kind, name)


def test_every_command_and_every_doubt_has_a_section() -> None:
    assert [line for line in cli.commands if f"## fedglass {line}\n" not in PAGES["cli.md"]] == []
    assert [kind for kind in DoubtKind if f"`{kind.value}`" not in PAGES["doubts.md"]] == []


def test_no_place_of_a_text_is_left_open() -> None:
    assert "{found}" not in PAGES["doubts.md"]
    assert "{{" not in PAGES["doubts.md"]


def test_a_part_that_is_new_changes_its_page(monkeypatch: pytest.MonkeyPatch) -> None:
    rules = dict(built_in("rules"))
    monkeypatch.setitem(tool["parts_tables"].__globals__, "built_in", lambda kind: {**rules, "new": rules["mean"]})
    assert tool["pages"]()["rules.md"] != PAGES["rules.md"]


def test_a_folder_that_cannot_be_written_is_refused_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SystemExit, match=r"^Cannot write .*cli\.md: .* Make the folder writable\.$"):
        tool["write"]({"cli.md": "text"}, tmp_path / "file")
