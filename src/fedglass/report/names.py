"""Short names of views, for tables and charts in which a sentence would not fit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from fedglass.ledger.records import Record
from fedglass.verdict.summary import Case

Names = Mapping[str, str]
"""The view in words -> its short name."""


def short_names(records: Sequence[Record]) -> dict[str, str]:
    """A name for every view of the records, no two of them alike; older records have the words alone."""
    found = {record.view: record for record in records}
    short = {view: _short(record) for view, record in found.items()}
    dated = _told_apart(short, {view: f"{name}, round {found[view].round}" for view, name in short.items()})
    return _told_apart(dated, {view: view for view in found})


def _told_apart(names: Names, longer: Names) -> dict[str, str]:
    """Names, longer where two views would have the same."""
    counts = Counter(names.values())
    return {view: name if counts[name] == 1 else longer[view] for view, name in names.items()}


def _short(record: Record) -> str:
    if not record.view_name:
        return record.view
    together = record.standpoint == "aggregate" and record.behind
    return f"{record.view_name} of {len(record.behind)}" if together else record.view_name


def some(texts: Sequence[str], limit: int = 6) -> list[str]:
    """Distinct texts in order, the rest counted.

    >>> some(["a", "b", "a", "c"], limit=2)
    ['a', 'b', 'and 1 more of this kind']
    """
    distinct = list(dict.fromkeys(texts))
    left = len(distinct) - limit
    return distinct if left <= 0 else [*distinct[:limit], f"and {left} more of this kind"]


def message_name(record: Record | Case, names: Names) -> str:
    """Return the short name of a record's message, with the round unless the name has it."""
    view = names[record.view]
    return view if "round" in view else f"{view}, round {record.round}"


def by_text(pairs: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return each text once, after the names that it holds for.

    >>> by_text([("No noise.", "a"), ("No noise.", "b"), ("Too long.", "c")])
    [('a; b', 'No noise.'), ('c', 'Too long.')]
    """
    found: dict[str, list[str]] = {}
    for text, name in pairs:
        found.setdefault(text, []).append(name)
    return [("; ".join(some(names)), text) for text, names in found.items()]
