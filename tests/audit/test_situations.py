"""No false verdict: situations in which the true answer is known, each audited as a user would."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
MOST_INCONCLUSIVE = 0.25


def tool() -> Any:
    spec = importlib.util.spec_from_file_location("verdicts", ROOT / "tools" / "verdicts.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


VERDICTS = tool()


@pytest.mark.parametrize("situation", VERDICTS.SITUATIONS, ids=lambda situation: situation.name)
def test_no_verdict_is_false(situation: Any) -> None:
    record, state = VERDICTS.audited(situation)
    assert state in {"leak", "clear", "inconclusive", "incomplete"}
    assert state not in situation.false
    assert situation.flag is None or situation.flag in [flag.name for flag in record.flags]


def test_there_are_enough_and_most_are_decided() -> None:
    """The table in the docs, which `make verdicts` writes: its names are the situations', its share is small."""
    lines = (ROOT / "docs" / "verdicts.md").read_text().splitlines()
    table = [line for line in lines if line.startswith("| ")]
    rows = [line.split(" | ") for line in table[1:]]
    assert [row[0].removeprefix("| ") for row in rows] == [situation.name for situation in VERDICTS.SITUATIONS]
    states = [row[2] for row in rows if row[1] != "open"]
    assert len(states) >= 40
    assert states.count("inconclusive") <= MOST_INCONCLUSIVE * len(states)
    assert {"leak", "clear"} <= set(states)
