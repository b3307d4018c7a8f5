"""One rule says when a candidate game exposes records, for the audit and for the guard."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from fedglass.bounds.success import Game, exposed_by
from fedglass.verdict.gate import Gate

FEW: dict[str, Any] = {
    "records": 7,
    "candidates": 1000,
    "top1": 1 / 7,
    "low": 0.004,
    "high": 0.6,
    "control": "counterfactual",
    "control_high": 0.4,
    "rank_p": [1 / 1001, *[0.5] * 6],
    "control_rank_p": [0.5] * 7,
}
MANY: dict[str, Any] = {**FEW, "records": 8, "low": 0.5, "rank_p": [0.5] * 8}


@pytest.mark.parametrize(
    ("game", "allowed", "exposed"),
    [
        (FEW, 0.1, "rank"),
        (FEW, 0.5, "rank"),  # one of seven is named: the rate is not above the limit, and does not decide
        ({**FEW, "control_rank_p": [1 / 1001]}, 0.1, ""),
        ({**FEW, "rank_p": [0.5] * 7}, 0.1, ""),
        ({**FEW, "control": "", "control_high": None}, 0.1, ""),
        (MANY, 0.1, "rate"),
        (MANY, 0.5, ""),
        ({**MANY, "candidates": 199}, 0.1, ""),
        ({**MANY, "same_source": False}, 0.1, ""),
    ],
)
def test_the_guard_and_the_audit_follow_one_rule(game: dict[str, Any], allowed: float, exposed: str) -> None:
    assert exposed_by(Game(**game), allowed, messages=1) == exposed
    record: Any = SimpleNamespace(game=Game(**game))
    assert Gate(max_singling_out=allowed).exposes(record) is bool(exposed)


def test_ranks_are_corrected_for_the_number_of_messages() -> None:
    assert exposed_by(Game(**FEW), 0.1, messages=7) == "rank"
    assert exposed_by(Game(**FEW), 0.1, messages=8) == ""
