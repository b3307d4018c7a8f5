"""What the commands answer with `--json`; docs/json.md has an example of each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from fedglass.ledger.records import RECORDS, REPORT, SUMMARY, Record
from fedglass.verdict.doubts import flags_of
from fedglass.verdict.gate import Gate
from fedglass.verdict.judge import Verdict
from fedglass.verdict.summary import Group


def of_verdict(verdict: Verdict) -> dict[str, Any]:
    """The answer itself, and what a pipeline would exit with."""
    interval = {"at_least": verdict.at_least, "at_most": verdict.at_most, "sentence": verdict.interval}
    return {
        "state": verdict.state,
        "exit_code": verdict.exit_code,
        "sentence": verdict.sentence,
        "interval": interval,
        "next_step": verdict.step,
        "limits": list(verdict.limits),
    }


def of_records(records: Sequence[Record], planned: int | None, gate: Gate) -> dict[str, Any]:
    """How many cases have run, and the doubts that they carry; `planned` is None where nobody knows."""
    failed = sum(record.status == "failed" for record in records)
    counts = Counter((flag.kind, flag.severity) for record in records for flag in flags_of(record, gate))
    doubts = [{"kind": kind, "severity": how, "cases": cases} for (kind, how), cases in counts.most_common()]
    return {"cases": {"planned": planned, "run": len(records), "failed": failed}, "doubts": doubts}


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
