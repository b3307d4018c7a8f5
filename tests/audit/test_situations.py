"""No false verdict: situations in which the true answer is known, each audited as a user would."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from fedglass.verdict.collect_doubts import doubts_of
from fedglass.verdict.gate import Gate

ROOT = Path(__file__).parents[2]


def tool() -> Any:
    spec = importlib.util.spec_from_file_location("verdicts", ROOT / "tools" / "verdicts.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


VERDICTS = tool()
GATE = Gate()


@pytest.mark.parametrize("situation", VERDICTS.SITUATIONS, ids=lambda situation: situation.name)
def test_no_verdict_is_false(situation: Any) -> None:
    records, verdict = VERDICTS.audited(situation)
    assert verdict.state in {"leak", "exposed", "clear", "inconclusive", "incomplete"}
    assert verdict.state not in situation.false
    kinds = [doubt.kind for record in records for doubt in doubts_of(record, GATE)]
    assert situation.doubt is None or situation.doubt in kinds


def test_the_page_has_the_situations() -> None:
    """The table in the docs, which `make verdicts` writes: its names are the situations', and none is false."""
    lines = (ROOT / "docs" / "verdicts.md").read_text().splitlines()
    rows = [line.removeprefix("| ").split(" | ") for line in lines if line.startswith("| ")][1:]
    assert [row[0] for row in rows] == [situation.name for situation in VERDICTS.SITUATIONS]
    assert not [row[0] for row in rows if row[3].strip()]
    assert {"leak", "exposed", "clear", "inconclusive"} <= {row[2] for row in rows}
