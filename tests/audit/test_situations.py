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
    state = VERDICTS.row(situation)[2]
    assert state in {"leak", "clear", "inconclusive"}
    assert state not in situation.false


def test_there_are_enough_and_most_are_decided() -> None:
    """The table in the docs, which `make verdicts` writes: its names are the situations', its share is small."""
    rows = [line.split(" | ") for line in (ROOT / "docs" / "verdicts.md").read_text().splitlines() if " dB | " in line]
    assert [row[0].removeprefix("| ") for row in rows] == [situation.name for situation in VERDICTS.SITUATIONS]
    states = [row[2] for row in rows]
    assert len(states) >= 40
    assert states.count("inconclusive") <= MOST_INCONCLUSIVE * len(states)
    assert {"leak", "clear"} <= set(states)
