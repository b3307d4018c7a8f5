"""The page on the guard does what it says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fedglass.guard import REFUSED, Reason

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "guard.md").read_text(encoding="utf-8")


def test_the_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (program,) = re.findall(r"^```python\n(.*?)^```", PAGE, flags=re.DOTALL | re.MULTILINE)
    said = re.findall(r"# (False .*)$", program, flags=re.MULTILINE)
    program = program.replace("budget_seconds=60", "budget_seconds=3600")  # on a busy machine too
    exec(compile(program, "docs/guard.md", "exec"), {"__name__": "page"})
    assert capsys.readouterr().out.splitlines() == said


def test_every_reason_and_the_sentence_are_on_a_page() -> None:
    assert REFUSED in PAGE
    received = (DOCS / "received-models.md").read_text(encoding="utf-8")  # the signs of crafted models
    for reason in Reason:
        assert f"`{reason.value}`" in PAGE + received
