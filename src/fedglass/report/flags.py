"""Every flag explained once: cases carry its name alone, which leads to the explanation."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from fedglass.ledger.records import Record
from fedglass.report.names import count
from fedglass.verdict.doubts import flags_of
from fedglass.verdict.gate import Gate
from fedglass.verdict.texts import Flag, Severity

TONES: dict[Severity, str] = {"serious": "leak", "warning": "inconclusive", "info": ""}
_NUMBER = re.compile(r"(?<![\w.])-?\d+(?:\.\d+)?(?:e[-+]?\d+)?(?!\w)")
_SENTENCES = re.compile(r"(?<=[.!?])\s+(?=[A-Z])")


@dataclass(frozen=True)
class FlagGroup:
    """A flag, what it means, and how many cases carry it."""

    name: str
    severity: Severity
    question: str
    tone: str
    anchor: str
    text: str
    more: Sequence[str]
    """Sentences that only some of the cases have."""
    cases: str
    attacks: Sequence[str]


@dataclass(frozen=True)
class Label:
    """A flag at a case: its name, its colour, and where it is explained."""

    name: str
    tone: str
    anchor: str


def flag_groups(records: Sequence[Record], gate: Gate) -> list[FlagGroup]:
    """Return the doubts of all records, the serious ones first, each explained once."""
    groups: dict[str, list[tuple[Flag, Record]]] = {}
    for record in records:
        for flag in flags_of(record, gate):
            groups.setdefault(flag.kind, []).append((flag, record))
    order = list(TONES)
    return [
        FlagGroup(
            name=(first := found[0][0]).name,
            severity=first.severity,
            question=first.question.value,
            tone=TONES[first.severity],
            anchor=anchor(kind),
            text=(merged := _merged([flag.whole for flag, _ in found]))[0],
            more=merged[1:],
            cases=f"{len({r.key for _, r in found})} of {count(len(records), 'case')}",
            attacks=list(dict.fromkeys(r.attack for _, r in found)),
        )
        for kind, found in sorted(groups.items(), key=lambda item: order.index(item[1][0][0].severity))
    ]


def flag_labels(record: Record, gate: Gate) -> list[Label]:
    """Return the doubts of one record."""
    return [Label(flag.name, TONES[flag.severity], anchor(flag.kind)) for flag in flags_of(record, gate)]


def anchor(kind: str) -> str:
    """Return the address of an explanation on the page."""
    return f"doubt-{kind.replace('_', '-')}"


def _merged(texts: Sequence[str]) -> list[str]:
    """The explanation with the range of its figures, then sentences that only some of the cases have.

    >>> _merged(["It has 0.1 of 2. Stop.", "It has 0.3 of 2. One label is wrong. Stop."])
    ['It has 0.1 to 0.3 of 2. Stop.', 'One label is wrong.']
    """
    alike: dict[str, list[str]] = {}
    for text in texts:
        for sentence in _sentences(text):
            alike.setdefault(_NUMBER.sub("#", sentence), []).append(sentence)
    usual = [_NUMBER.sub("#", sentence) for sentence in _sentences(texts[0])]
    spread = {shape: _ranged(found) for shape, found in alike.items()}
    return [" ".join(spread[shape] for shape in usual), *(s for shape, s in spread.items() if shape not in usual)]


def _ranged(alike: Sequence[str]) -> str:
    """Sentences that differ in their figures as one, with the lowest and the highest of each."""
    slots = iter([_range(column) for column in zip(*map(_NUMBER.findall, alike), strict=True)])
    return _NUMBER.sub(lambda _: next(slots), alike[0])


def _range(figures: Sequence[str]) -> str:
    low, high = min(figures, key=float), max(figures, key=float)
    return low if float(low) == float(high) else f"{low} to {high}"


def _sentences(text: str) -> list[str]:
    """
    >>> _sentences("The search failed (0.1 and 0.2). Give the attack more iterations.")
    ['The search failed (0.1 and 0.2).', 'Give the attack more iterations.']
    """
    return _SENTENCES.split(text.strip())
