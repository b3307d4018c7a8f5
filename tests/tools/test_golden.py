"""Goldens differ where a number, a state or a picture does, and nowhere else."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


def _loaded() -> Any:
    spec = importlib.util.spec_from_file_location("golden_compare", ROOT / "tools" / "golden_compare.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


golden = _loaded()
HEAD = "# Renamed\n\nTwo sentences.\n\n| what | old | new |\n|---|---|---|\n"


def record(**changes: Any) -> dict[str, Any]:
    plain = {
        "kind": "attack",
        "attack": "dlg",
        "view": "the server sees all",
        "standpoint": "server",
        "round": 1,
        "client": "client 0",
        "repeat": 0,
        "seconds": 1.5,
        "error": None,
        "metrics": {"psnr": [20.0, None]},
        "doubts": [{"kind": "no_noise", "details": {"labels": 2, "words": "two"}}],
    }
    return {**plain, **changes}


def found(old: Any, new: Any, rows: str = "") -> list[str]:
    told = golden.compared({"piece": old}, {"piece": new}, golden.renames_in(HEAD + rows))
    return [str(each) for each in told.get("piece", [])]


def pair(**changes: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    return {"records": [record()]}, {"records": [record(**changes)]}


@pytest.mark.parametrize(
    "changes",
    [
        {"seconds": 9.0},
        {"view": "other words"},
        {"doubts": [{"kind": "no_noise", "details": {"labels": 2, "words": "2"}}]},
        {"versions": {"torch": "3"}},
        {"digest": "of a line with other times"},
    ],
)
def test_texts_and_times_are_not_compared(changes: dict[str, Any]) -> None:
    assert found(*pair(**changes)) == []


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"metrics": {"psnr": [20.000000000000004, None]}}, "records[0].metrics.psnr[0]: 20.0 -> 20.000000000000004"),
        ({"metrics": {"psnr": [20.0, 1.0]}}, "records[0].metrics.psnr[1]: None -> 1.0"),
        ({"error": "it broke"}, "records[0].error: False -> True"),
        ({"explains": True}, "records[0].explains: (absent) -> True"),
        ({"doubts": []}, "records[0].doubts (length): 1 -> 0"),
        (
            {"doubts": [{"kind": "no_noise", "details": {"labels": 3, "words": "two"}}]},
            "records[0].doubts[0].details.labels: 2 -> 3",
        ),
    ],
)
def test_the_last_bit_and_every_state_are(changes: dict[str, Any], said: str) -> None:
    assert found(*pair(**changes)) == [said]


def test_the_order_of_records_means_nothing() -> None:
    first, second = record(), record(client="client 1", metrics={"psnr": [3.0]})

    assert found({"records": [first, second]}, {"records": [second, first]}) == []


@pytest.mark.parametrize(
    ("row", "changes"),
    [
        ("| attack | `dlg` | `deep_leakage` |", {"attack": "deep_leakage"}),
        ("| doubt | no_noise | noiseless |", {"doubts": [{"kind": "noiseless", "details": {"labels": 2}}]}),
        ("| record field | metrics.psnr | metrics.peak |", {"metrics": {"peak": [20.0, None]}}),
        (
            "| record field | doubts.details.labels | doubts.details.classes |",
            {"doubts": [{"kind": "no_noise", "details": {"classes": 2}}]},
        ),
        ("| record field | repeat | told.repeat |", {"told": {"repeat": 0}, "repeat": None}),
        ("| client | client * | hospital * |", {"client": "hospital 0"}),
        ("| view | server | curious server |", {"standpoint": "curious server"}),
        ("| round of | pie* | +1 |", {"round": 2}),
        ("| record field | client | |", {"client": None}),
    ],
)
def test_what_was_renamed_is_compared_under_its_new_name(row: str, changes: dict[str, Any]) -> None:
    new = {name: each for name, each in record(**changes).items() if each is not None or name == "error"}

    assert found({"records": [record()]}, {"records": [new]})
    assert found({"records": [record()]}, {"records": [new]}, row) == []


def test_fields_of_a_summary_are_renamed_apart_from_those_of_records() -> None:
    old = {"summary": {"cases": 1, "attacks": [{"cases": 1}]}, "records": [{"cases": 1}]}
    new = {"summary": {"runs": 1, "attacks": [{"cases": 1}]}, "records": [{"cases": 1}]}

    assert found(old, new, "| summary field | cases | runs |") == []


def test_reports_of_a_guard_are_renamed_case_by_case() -> None:
    old, new = ({"reports": {"undefended": {name: 1.0, "reasons": ["noise"]}}} for name in ("norm", "length"))

    assert found(old, new, "| report field | norm | length |") == []


def test_situations_keep_their_answers_under_a_new_name() -> None:
    old, new = ({"situations": {name: {"verdict": {"state": "leak"}}}} for name in ("plain SGD", "SGD"))

    assert found(old, new, "| situation | plain SGD | SGD |") == []


def test_rows_of_the_verdicts_are_compared_together() -> None:
    one, other = {"situations": {"a": 1}}, {"situations": {"b": 2}}

    assert golden.joined({"1 of 2": one, "2 of 2": other}) == golden.joined({"1 of 2": other, "2 of 2": one})


def test_the_page_of_names_is_read() -> None:
    page = (ROOT / "docs" / "renamed.md").read_text(encoding="utf-8")

    assert all(row.what and row.old for row in golden.renames_in(page))
