"""Every doubt explained once: cases carry its name alone, which leads to the explanation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import JsonValue

from fedglass.ledger.doubts import Doubt, Kind
from fedglass.ledger.records import Record
from fedglass.verdict.doubts import ORDER, doubts_of, flags_of
from fedglass.verdict.gate import Gate
from fedglass.verdict.texts import NAMED, Flag, Question, Severity, count, flag

TONES: dict[Severity, str] = {"serious": "leak", "warning": "inconclusive", "info": ""}


@dataclass(frozen=True)
class Label:
    """A doubt at a case: its name, its colour, and where it is explained."""

    name: str
    tone: str
    anchor: str


@dataclass(frozen=True)
class FlagGroup:
    """A doubt, what it means, and how many cases carry it."""

    flag: Flag
    label: Label
    cases: str
    attacks: Sequence[str]


def doubts_by_question(records: Sequence[Record], gate: Gate) -> list[tuple[str, list[FlagGroup]]]:
    """Return the doubts of all records under their questions, the serious ones first, each explained once."""
    found: dict[Kind, list[tuple[Doubt, Record]]] = {}
    for record in records:
        for each in doubts_of(record, gate):
            found.setdefault(each.kind, []).append((each, record))
    groups = sorted((_group(pairs, len(records)) for pairs in found.values()), key=_severity)
    asked = [(question, [group for group in groups if group.flag.question is question]) for question in Question]
    return [(question.value, chosen) for question, chosen in asked if chosen]


def flag_labels(record: Record, gate: Gate) -> list[Label]:
    """Return the doubts of one record."""
    return [label(each) for each in flags_of(record, gate)]


def label(each: Flag) -> Label:
    """Return a doubt as cases show it."""
    return Label(each.name, TONES[each.severity], anchor(each.kind))


def anchor(kind: str) -> str:
    """Return the address of an explanation on the page."""
    return f"doubt-{kind.replace('_', '-')}"


def _severity(group: FlagGroup) -> int:
    return ORDER.index(group.flag.severity)


def _group(pairs: Sequence[tuple[Doubt, Record]], total: int) -> FlagGroup:
    together = flag(merged([each for each, _ in pairs]))
    cases = f"{len({record.key for _, record in pairs})} of {count(total, 'case')}"
    return FlagGroup(together, label(together), cases, list(dict.fromkeys(record.attack for _, record in pairs)))


def merged(doubts: Sequence[Doubt]) -> Doubt:
    """Return doubts of one kind as one, with the range of each figure and all names.

    >>> from fedglass.ledger.doubts import doubt
    >>> merged([doubt(Kind.WRONG_LABELS, labels=1), doubt(Kind.WRONG_LABELS, labels=3)]).details
    {'labels': '1 to 3'}
    """
    names = dict.fromkeys(name for each in doubts for name in each.details)
    told = {name: [each.details[name] for each in doubts if name in each.details] for name in names}
    return Doubt(kind=doubts[0].kind, details={name: _together(values) for name, values in told.items()})


def _together(values: Sequence[JsonValue]) -> JsonValue:
    """Return one value for all: numbers as their range, lists as their union, and texts one after another."""
    numbers = [value for value in values if isinstance(value, int | float)]
    if len(numbers) == len(values):
        low, high = min(numbers), max(numbers)
        return low if low == high else f"{low:.3g} to {high:.3g}"
    if all(isinstance(value, list) for value in values):
        return list(dict.fromkeys(str(each) for value in values if isinstance(value, list) for each in value))
    texts = list(dict.fromkeys(str(value) for value in values))
    more = [f"({len(texts) - NAMED} more.)"] if len(texts) > NAMED else []
    return (" " if texts[0].endswith(".") else "; ").join([*texts[:NAMED], *more])
