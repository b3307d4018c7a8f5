"""What the commands answer with `--json`; docs/json.md has an example of each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from fedglass.ledger.records import RECORDS, REPORT, SUMMARY, Record
from fedglass.verdict.gate import Gate, Verdict
from fedglass.verdict.summary import Group


def of_verdict(verdict: Verdict) -> dict[str, Any]:
    """The answer itself, and what a pipeline would exit with."""
    return {"state": verdict.state, "exit_code": verdict.exit_code, "sentence": verdict.sentence}


def of_records(records: Sequence[Record], planned: int | None) -> dict[str, Any]:
    """How many cases have run, and the flags that they carry; `planned` is None where nobody knows."""
    failed = sum(record.status == "failed" for record in records)
    counts = Counter((flag.name, flag.severity) for record in records for flag in record.flags)
    flags = [{"name": name, "severity": how, "cases": cases} for (name, how), cases in counts.most_common()]
    return {"cases": {"planned": planned, "run": len(records), "failed": failed}, "flags": flags}


def of_attacks(groups: Sequence[Group]) -> list[dict[str, Any]]:
    """What each attack recovered, the one that leaked most first."""
    fields = ("attack", "cases", "failed", "images", "recovered", "oracle")
    return [{name: getattr(group, name) for name in fields} for group in groups]


def of_gate(gate: Gate) -> dict[str, Any]:
    """What was judged by."""
    return {field.name: getattr(gate, field.name) for field in fields(gate) if field.compare}


def of_directory(directory: Path) -> dict[str, str]:
    """Where everything is."""
    names = {"records": RECORDS, "summary": SUMMARY, "report": REPORT}
    return {"directory": str(directory), **{name: str(directory / file) for name, file in names.items()}}
