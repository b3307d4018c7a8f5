"""Whose images came back, where the records say whose each image is."""

from __future__ import annotations

from collections.abc import Sequence

from fedglass.ledger.records import Record
from fedglass.report.names import Names, some
from fedglass.report.page import Cell, Table
from fedglass.verdict.gate import Gate, is_mute
from fedglass.verdict.images import ImageScores

COULD = {"server": "whoever reads the server", "aggregate": "whoever reads the server"}


def whose_images(records: Sequence[Record], gate: Gate, names: Names) -> Table | None:
    """By view, how many images of each client some attack recovered; None where no record says whose they are."""
    views: dict[str, list[Record]] = {}
    for record in records:
        if record.status == "done" and record.owners and not is_mute(record):
            views.setdefault(record.view, []).append(record)
    rows = [_row(names[view], group, gate) for view, group in views.items()]
    return Table(["view", "who could do this", "came back", "whose"], rows) if rows else None


def _row(name: str, records: Sequence[Record], gate: Gate) -> list[Cell | str]:
    owners, came = records[0].owners, _came_back(records, gate)
    each = [_of(client, owners, came) for client in dict.fromkeys(owners)]
    return [name, _could(records[0]), f"{len(came)} of {len(owners)}", ", ".join(some(each, 12))]


def _came_back(records: Sequence[Record], gate: Gate) -> set[int]:
    """The images that some attack recovered in some repeat."""
    return {i for record in records for i, hit in enumerate(gate.hits(ImageScores.of(record))) if hit}


def _of(client: str, owners: Sequence[str], came: set[int]) -> str:
    """
    >>> _of("a", ["a", "b", "a"], {1, 2})
    'a: 1 of 2'
    """
    own = [i for i, owner in enumerate(owners) if owner == client]
    return f"{client}: {len(came.intersection(own))} of {len(own)}"


def _could(record: Record) -> str:
    if record.standpoint == "peer" and record.participants:
        return f"any of the {len(record.participants)} participants"
    return COULD.get(record.standpoint, "not told")
