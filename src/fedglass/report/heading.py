"""What stands above the page: the audit's title and its date."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from fedglass.ledger.records import PLAN, RECORDS, Record

LONGEST_PLAN = 2**20


def plan_text(directory: Path) -> str | None:
    """The plan as it was kept beside the records, or None."""
    path = directory / PLAN
    if not path.is_file():
        return None
    with path.open("rb") as file:
        return file.read(LONGEST_PLAN).decode("utf-8", errors="replace")


def title_of(plan: str | None) -> str:
    """The plan's title; empty where it has none, or is no plan.

    >>> title_of('title = "Pilot"'), title_of("<oops>"), title_of(None)
    ('Pilot', '', '')
    """
    try:
        title = tomllib.loads(plan or "").get("title", "")
    except (tomllib.TOMLDecodeError, RecursionError):
        return ""
    return title.strip() if isinstance(title, str) else ""


def ended(directory: Path, records: Sequence[Record]) -> str:
    """When the last case ended, or by older records when their file was written.

    The page itself has no date, so that it can be made again.
    """
    known = [when for record in records if (when := _instant(record.finished)) is not None]
    when = max(known) if known else datetime.fromtimestamp((directory / RECORDS).stat().st_mtime, UTC)
    return when.strftime("%Y-%m-%d %H:%M UTC")


def _instant(text: str | None) -> datetime | None:
    try:
        found = datetime.fromisoformat(text or "")
        return found.astimezone(UTC) if found.tzinfo else found.replace(tzinfo=UTC)
    except (ValueError, OverflowError):
        return None
