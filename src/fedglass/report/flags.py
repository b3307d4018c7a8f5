"""Every flag explained once: cases carry its name alone, which leads to the explanation."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from fedglass.ledger.records import Flag, Record, Severity
from fedglass.report.names import count

TONES: dict[Severity, str] = {"serious": "leak", "warning": "inconclusive", "info": ""}
_NUMBER = re.compile(r"(?<![\w.])-?\d+(?:\.\d+)?(?:e[-+]?\d+)?(?!\w)")
_SENTENCES = re.compile(r"(?<=[.!?])\s+(?=[A-Z])")


@dataclass(frozen=True)
class FlagGroup:
    """A flag, what it means, and how many cases carry it."""

    name: str
    severity: Severity
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


def flag_groups(records: Sequence[Record]) -> list[FlagGroup]:
    """The flags of all records, the serious ones first."""
    groups: dict[tuple[str, Severity], list[tuple[str, Record]]] = {}
    for record in records:
        for flag in record.flags:
            groups.setdefault((flag.name, flag.severity), []).append((flag.text, record))
    order, anchors = list(TONES), _anchors(records)
    return [
        FlagGroup(
            name=name,
            severity=severity,
            tone=TONES[severity],
            anchor=anchors[name, severity],
            text=(merged := _merged([text for text, _ in found]))[0],
            more=merged[1:],
            cases=f"{len({r.key for _, r in found})} of {count(len(records), 'case')}",
            attacks=list(dict.fromkeys(r.attack for _, r in found)),
        )
        for (name, severity), found in sorted(groups.items(), key=lambda item: order.index(item[0][1]))
    ]


def flag_labels(record: Record, groups: Sequence[FlagGroup]) -> list[Label]:
    """The flags of one record."""
    where = {(group.name, group.severity): group.anchor for group in groups}
    return [Label(f.name, TONES[f.severity], where[f.name, f.severity]) for f in record.flags]


def next_step(records: Sequence[Record]) -> str:
    """What to do about the first serious flag, which is what its text ends with; empty without one."""
    texts = [flag.text for record in records for flag in record.flags if flag.severity == "serious"]
    return _sentences(texts[0])[-1] if texts else ""


def _anchors(records: Sequence[Record]) -> dict[tuple[str, Severity], str]:
    """Numbered, since two names may be alike but for signs that no address can hold."""
    flags: list[Flag] = [flag for record in records for flag in record.flags]
    kinds = dict.fromkeys((flag.name, flag.severity) for flag in flags)
    return {kind: f"flag-{number}" for number, kind in enumerate(kinds, 1)}


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
