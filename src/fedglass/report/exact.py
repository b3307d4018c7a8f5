"""What exact attacks read: they solve equations of the message instead of searching."""

from __future__ import annotations

from collections.abc import Sequence

from fedglass.ledger.doubts import Kind
from fedglass.ledger.records import Record
from fedglass.report.names import Names, by_text, message_name
from fedglass.verdict.doubts import flags_of
from fedglass.verdict.gate import Gate
from fedglass.verdict.summary import Case
from fedglass.verdict.texts import count


def read_exactly(found: Record | Case) -> str:
    """Return by which method something was read, and whether that was verified."""
    return f"read by {found.method}" + ("; verified: it explains the message" if found.explains else "; not verified")


def exact_lines(records: Sequence[Record], gate: Gate, names: Names) -> list[tuple[str, str]]:
    """Return what exact attacks read from each message, or why they read nothing."""
    told = [(text, message_name(record, names)) for record in records for text in _told(record, gate)]
    return by_text(told)


def _told(record: Record, gate: Gate) -> list[str]:
    if record.method:
        return [f"{count(len(record.labels_recovered), 'image')} {read_exactly(record)}."]
    return [flag.text for flag in flags_of(record, gate) if flag.kind is Kind.NO_EXACT_METHOD]
