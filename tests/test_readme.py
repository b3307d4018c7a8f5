"""The README's examples are run as they stand."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

import pytest

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)


def test_the_first_example_writes_a_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    exec(compile(BLOCKS[0], "README.md", "exec"), {"__name__": "readme"})
    assert "recovered" in capsys.readouterr().out
    assert "</html>" in (tmp_path / "audits" / "readme.html").read_text(encoding="utf-8")


def test_the_other_examples_print_what_they_say() -> None:
    parser, runner = doctest.DocTestParser(), doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    tests = [parser.get_doctest(block, {}, "README.md", "README.md", 0) for block in BLOCKS[1:]]
    assert sum(len(test.examples) for test in tests) >= 2
    for test in tests:
        assert runner.run(test).failed == 0
