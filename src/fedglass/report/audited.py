"""An audit directory as every form of report reads it: records and the gate alone, so that nothing needs torch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from fedglass.core.errors import UsageError
from fedglass.core.scale import Scale
from fedglass.ledger.records import RECORDS, SUMMARY, Record, RecordFile
from fedglass.verdict.doubts import with_refutations
from fedglass.verdict.gate import Gate
from fedglass.verdict.summary import read_summary


def records_of(directory: Path) -> list[Record]:
    """The records of an audit directory, with what they say of each other, or that it is none."""
    if not (directory / RECORDS).is_file():
        raise UsageError(f"{directory} is not an audit directory (no {RECORDS}): run `fedglass audit` first.")
    return with_refutations(RecordFile(directory / RECORDS).read())


def judged_by(directory: Path, done: int) -> tuple[Gate, int | None, Mapping[str, Scale]]:
    """The gate that the audit was judged by, how many planned cases are missing (None: unknown), and the scales."""
    if not (directory / SUMMARY).is_file():
        return Gate(), None, {}
    summary = read_summary(directory / SUMMARY)
    return summary.judged_by(), max(0, summary.planned - done), summary.scales
