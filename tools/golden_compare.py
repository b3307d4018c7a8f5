"""What two goldens are compared by: what is left out, what was renamed, and where they differ."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from typing import Any

TIMES = (
    "seconds",
    "peak_mib",
    "finished",
    "versions",
    "schema_version",
    "fedglass",
    "key",
    "paths",
    "attack_repr",
    "digest",
)
"""Times, memory, versions, names of files and cases that come from texts, and digests over all that: they differ."""
TEXTS = ("knows", "defences", "behaviours", "limits", "remarks", "findings", "needed", "problem")
NOT_COMPARED = frozenset((*TIMES, *TEXTS))
WORDS = ("view", "view_name", "sentence", "lead", "caveat", "interval", "step", "next_step", "title", "film_caption")
PROSE = frozenset((*WORDS, "source", "spread", "data", "experiment", "fault", "unit", "words", "bundle"))
"""Fields whose strings are not compared, but whose numbers are."""
ROOTS = {
    "record field": ("records",),
    "summary field": ("summary",),
    "verdict field": ("verdict",),
    "answer field": ("answer", "bundle"),
    "report field": ("reports",),
}
"""What a row renames -> under which names of a golden such things stand."""
FIELDS = {
    "attack": ("attack",),
    "doubt": ("kind",),
    "kind": ("kind",),
    "state": ("state", "status", "severity", "judged"),
    "reason": ("reasons",),
    "view": ("standpoint",),
    "method": ("method",),
    "client": ("client", "participants", "accepted", "contributors", "kept", "behind", "owners", "owner"),
    "value": ("*",),
}
"""What a row renames -> the fields that have such values."""


@dataclass(frozen=True)
class Renamed:
    """One row of the table of names."""

    what: str
    old: str
    new: str


@dataclass(frozen=True)
class Difference:
    """A place in a golden where old and new differ."""

    where: str
    old: Any
    new: Any

    def __str__(self) -> str:
        return f"{self.where}: {_short(self.old)} -> {_short(self.new)}"


class Absent:
    """Stands for what one of the two does not have."""

    def __repr__(self) -> str:
        return "(absent)"


ABSENT = Absent()


def renames_in(page: str) -> list[Renamed]:
    """Read the rows of the table on a page.

    >>> renames_in("| what | old | new |\\n|---|---|---|\\n| doubt | `no_noise` | `noiseless` |")
    [Renamed(what='doubt', old='no_noise', new='noiseless')]
    """
    lines = [line.strip() for line in page.splitlines() if line.strip().startswith("|")]
    rows = [[cell.strip().strip("`") for cell in line.strip("|").split("|")] for line in lines[2:]]
    return [Renamed(*row) for row in rows if len(row) == 3]


def renamed(golden: Any, rows: Sequence[Renamed], piece: str = "") -> Any:
    """Return a golden under the new names."""
    for row in rows:
        if row.what in ROOTS:
            golden = _under(golden, ROOTS[row.what], row)
        elif row.what in FIELDS:
            golden = _with_value(golden, FIELDS[row.what], row)
        elif row.what == "round of" and fnmatch(piece, row.old):
            golden = _with_rounds(golden, int(row.new))
        elif row.what == "situation":
            golden = _with_key(golden, "situations", row)
    return golden


def cleaned(value: Any, field: str = "") -> Any:
    """Leave out what is not compared, and put what has no order into one."""
    if field == "error":
        return value is not None
    if field == "skipped_metrics":
        return sorted(value)
    if field == "lines":
        return [{name: _figures(cell) for name, cell in line.items()} for line in value]
    if field in ("details", "extra"):
        return _numbers(value)
    if isinstance(value, dict):
        pairs = {name: each for name, each in value.items() if name not in NOT_COMPARED}
        return {name: cleaned(each, name) for name, each in pairs.items() if not _is_prose(name, each)}
    if isinstance(value, list):
        members = [cleaned(each, field) for each in value if not _is_prose(field, each)]
        return sorted(members, key=_place) if members and all(isinstance(each, dict) for each in members) else members
    return value


def differences(old: Any, new: Any, where: str = "") -> Iterator[Difference]:
    """Yield every place in which two cleaned goldens differ.

    >>> [str(each) for each in differences({"a": [1, 2.0]}, {"a": [1, 2.5]})]
    ['a[1]: 2.0 -> 2.5']
    """
    if isinstance(old, dict) and isinstance(new, dict):
        for name in [*old, *(name for name in new if name not in old)]:
            inner = f"{where}.{name}" if where else str(name)
            yield from differences(old.get(name, ABSENT), new.get(name, ABSENT), inner)
    elif isinstance(old, list) and isinstance(new, list):
        if len(old) != len(new):
            yield Difference(f"{where} (length)", len(old), len(new))
        for index, pair in enumerate(zip(old, new, strict=False)):
            yield from differences(*pair, f"{where}[{index}]")
    elif not _same(old, new):
        yield Difference(where, old, new)


def compared(old: Mapping[str, Any], new: Mapping[str, Any], rows: Sequence[Renamed]) -> dict[str, list[Difference]]:
    """Return the differences of each piece that has some."""
    found = {name: list(differences(cleaned(renamed(old[name], rows, name)), cleaned(new[name]))) for name in old}
    return {name: each for name, each in found.items() if each}


def joined(goldens: Mapping[str, Any]) -> dict[str, Any]:
    """Put the rows of the table of verdicts together: a renamed one may have come to stand in another piece."""
    rows = [golden["situations"] for golden in goldens.values() if "situations" in golden]
    others = {name: golden for name, golden in goldens.items() if "situations" not in golden}
    return {**others, "verdicts": {"situations": {name: said for part in rows for name, said in part.items()}}}


def _same(old: Any, new: Any) -> bool:
    if isinstance(old, float) and isinstance(new, float) and math.isnan(old):
        return math.isnan(new)
    return isinstance(old, bool) == isinstance(new, bool) and bool(old == new)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:97]}..."


def _is_prose(field: str, value: Any) -> bool:
    return field in PROSE and isinstance(value, str)


def _numbers(value: Any) -> Any:
    """Keep the numbers of details, whose strings are words for a sentence."""
    if isinstance(value, dict):
        kept = {name: _numbers(each) for name, each in value.items() if name not in NOT_COMPARED}
        return {name: each for name, each in kept.items() if each is not ABSENT}
    if isinstance(value, list):
        return [each for each in map(_numbers, value) if each is not ABSENT]
    return ABSENT if isinstance(value, str) else value


def _figures(cell: Any) -> Any:
    """Return the numbers in a cell of a printed table."""
    return [float(each) for each in re.findall(r"-?\d+(?:\.\d+)?(?:e-?\d+)?", cell)] if isinstance(cell, str) else cell


def _place(member: dict[str, Any]) -> tuple[str, ...]:
    """Return what orders records, groups and doubts, whose order in a file means nothing."""
    first = ("kind", "attack", "name", "row", "method", "standpoint", "round", "client", "repeat", "image", "swept")
    return (*(json.dumps(member.get(name), sort_keys=True) for name in first), json.dumps(member, sort_keys=True))


def _under(golden: Any, names: Sequence[str], row: Renamed) -> Any:
    """Rename a field wherever the golden has things of this kind."""
    if isinstance(golden, list):
        return [_under(each, names, row) for each in golden]
    if not isinstance(golden, dict):
        return golden
    found = {name: _under(each, names, row) for name, each in golden.items()}
    for name in names:
        if name == "reports" and name in found:  # by case
            found[name] = {
                case: _moved(each, row.old.split("."), row.new.split(".")) for case, each in found[name].items()
            }
        elif name in found:
            found[name] = _moved(found[name], row.old.split("."), row.new.split("."))
    return found


def _moved(value: Any, old: Sequence[str], new: Sequence[str]) -> Any:
    """Return the value with what is at one dotted path at another; without it where the new one is empty."""
    if isinstance(value, list):
        return [_moved(each, old, new) for each in value]
    if not isinstance(value, dict) or old[0] not in value:
        return value
    value = dict(value)
    if len(old) > 1 and old[0] == new[0]:
        return {**value, old[0]: _moved(value[old[0]], old[1:], new[1:])}
    taken, value = _taken(value, old)
    return value if taken is ABSENT or not new[-1] else _put(value, new, taken)


def _taken(value: dict[str, Any], path: Sequence[str]) -> tuple[Any, dict[str, Any]]:
    if path[0] not in value or (len(path) > 1 and not isinstance(value[path[0]], dict)):
        return ABSENT, value
    if len(path) == 1:
        return value[path[0]], {name: each for name, each in value.items() if name != path[0]}
    taken, rest = _taken(value[path[0]], path[1:])
    return taken, {**value, path[0]: rest}


def _put(value: dict[str, Any], path: Sequence[str], what: Any) -> dict[str, Any]:
    inner = value.get(path[0])
    return {
        **value,
        path[0]: what if len(path) == 1 else _put(inner if isinstance(inner, dict) else {}, path[1:], what),
    }


def _with_value(value: Any, fields: Sequence[str], row: Renamed, field: str = "") -> Any:
    if isinstance(value, dict):
        return {name: _with_value(each, fields, row, name) for name, each in value.items()}
    if isinstance(value, list):
        return [_with_value(each, fields, row, field) for each in value]
    if not isinstance(value, str) or (field not in fields and fields != ("*",)):
        return value
    return _by_pattern(value, row.old, row.new)


def _by_pattern(value: str, old: str, new: str) -> str:
    """Rename a value; each `*` of the new name stands for what the same `*` of the old one stood for."""
    match = re.fullmatch("(.*)".join(map(re.escape, old.split("*"))), value)
    if match is None:
        return value
    parts = new.split("*")
    return parts[0] + "".join(group + part for group, part in zip(match.groups(), parts[1:], strict=True))


def _with_rounds(value: Any, shift: int, field: str = "") -> Any:
    if isinstance(value, dict):
        return {name: _with_rounds(each, shift, name) for name, each in value.items()}
    if isinstance(value, list):
        return [_with_rounds(each, shift, field) for each in value]
    return value + shift if field == "round" and isinstance(value, int) else value


def _with_key(golden: Any, place: str, row: Renamed) -> Any:
    if not isinstance(golden, dict) or place not in golden:
        return golden
    return {**golden, place: {_by_pattern(name, row.old, row.new): each for name, each in golden[place].items()}}
