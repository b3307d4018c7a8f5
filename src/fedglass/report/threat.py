"""The one threat model of a page: who sees what, what all of them know, and in what they differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from fedglass.ledger.records import Record
from fedglass.report.drawing import drawing
from fedglass.report.names import Names, some
from fedglass.report.page import Cell, Table
from fedglass.verdict.texts import count

MOST_ROUNDS = 12
"""Rounds of which the page says whose updates got through."""
STANDPOINTS = {
    "server": ("The server", "sees the update of each client by itself."),
    "aggregate": (
        "The server behind secure aggregation",
        "sees only what the aggregation rule made of all updates of a round.",
    ),
    "peer": (
        "A peer (one of the clients)",
        "sees the global model before and after a round, and knows its own images and update.",
    ),
}


@dataclass(frozen=True)
class Adversary:
    """One place from which somebody looks."""

    who: str
    sees: str
    scene: Markup | None
    views: Sequence[str]
    lines: Sequence[str]
    """Who could do this, and whose images are behind what is seen."""


@dataclass(frozen=True)
class ThreatModel:
    """What all adversaries of the audit see and know."""

    adversaries: Sequence[Adversary]
    attacks: Sequence[str]
    common: Table
    """Facts that all of them were given."""
    differences: Table | None
    """Facts that only some were given."""
    defences: Sequence[tuple[str, Sequence[str]]]
    """What protects the messages, and in which views where those differ."""
    rounds: Sequence[str]
    """Whose updates got through the aggregation rule, and what poisoners did."""


def threat_model(records: Sequence[Record], names: Names) -> ThreatModel:
    """The threat model, from the records alone."""
    common = _common(records)
    return ThreatModel(
        adversaries=_adversaries(records, names),
        attacks=list(dict.fromkeys(record.attack for record in records)),
        common=Table(["", ""], [_fact(name, words) for name, words in common.items()]),
        differences=_differences(records, names, common),
        defences=_defences(records, names),
        rounds=_rounds(records),
    )


def _adversaries(records: Sequence[Record], names: Names) -> list[Adversary]:
    groups: dict[str, list[Record]] = {}
    for record in records:
        groups.setdefault(record.standpoint if record.standpoint in STANDPOINTS else "", []).append(record)
    found = []
    for standpoint, group in groups.items():
        who, sees = STANDPOINTS.get(standpoint, ("The adversary", "sees what is listed here."))
        views = some([names[record.view] for record in group])
        scene = drawing(standpoint, f"{who} {sees}")
        found.append(Adversary(who, sees, scene, views, _lines(standpoint, group)))
    return found


def _lines(standpoint: str, records: Sequence[Record]) -> list[str]:
    """Who could do this, and among how many an image hides.

    >>> _lines("server", [])
    []
    """
    if standpoint == "server":
        return []
    told = [(len(r.participants), len(r.behind), len(r.labels_true)) for r in records if r.behind]
    lines = []
    for participants, behind, images in dict.fromkeys(told):
        those = f", {count(images, 'image')} in all" if images else ""
        if standpoint == "peer":
            lines.append(f"Any of the {participants} participants could do this, with what it is sent anyway.")
            lines.append(f"Behind the message are the images of {count(behind, 'other')}{those}.")
        else:
            lines.append(f"Behind the message are the images of {count(behind, 'client')}{those}.")
    return list(dict.fromkeys(lines))


def _differences(records: Sequence[Record], names: Names, common: dict[str, str]) -> Table | None:
    """A row for each distinct set of facts that not all adversaries share."""
    columns = list(dict.fromkeys(name for record in records for name in record.knows if name not in common))
    if not columns:
        return None
    groups: dict[tuple[str, ...], list[Record]] = {}
    for record in records:
        groups.setdefault(tuple(record.knows.get(name, "") for name in columns), []).append(record)
    rows = [
        [_whose(group, records, names), *(_words(c, w) for c, w in zip(columns, facts, strict=True))]
        for facts, group in groups.items()
    ]
    return Table(["view", *(name.replace("_", " ") for name in columns)], rows)


def _whose(group: Sequence[Record], records: Sequence[Record], names: Names) -> Cell:
    """The views of a group, and its attacks where they are not all of the audit's."""
    views, attacks = dict.fromkeys(r.view for r in group), dict.fromkeys(r.attack for r in group)
    everywhere = len(views) == len({r.view for r in records}) and len(views) > 1
    text = "all views" if everywhere else "; ".join(some([names[view] for view in views]))
    return Cell(text, note="" if len(attacks) == len({r.attack for r in records}) else ", ".join(some(list(attacks))))


def _defences(records: Sequence[Record], names: Names) -> list[tuple[str, Sequence[str]]]:
    """What protects the messages, and in which views where those differ; nothing where nobody knows."""
    found: dict[tuple[str, ...], list[str]] = {}
    for record in records:
        if record.defences is not None:
            found.setdefault(tuple(record.defences) or ("No defence.",), []).append(names[record.view])
    together = len(found) == 1 and all(record.defences is not None for record in records)
    return [("" if together else "; ".join(some(views)), lines) for lines, views in found.items()]


def _rounds(records: Sequence[Record]) -> list[str]:
    """Whose updates the aggregation rule let through in each audited round, and what poisoners did there."""
    rounds = dict.fromkeys((r.round, tuple(r.participants), tuple(r.kept)) for r in records if r.participants)
    lines = [_got_through(*facts) for facts in sorted(rounds)]
    return some([*lines, *(line for record in records for line in record.behaviours)], MOST_ROUNDS)


def _got_through(index: int, participants: Sequence[str], kept: Sequence[str]) -> str:
    """One round in a sentence.

    >>> _got_through(3, ("a", "b", "c"), ("b",))
    'Round 3: 1 of 3 updates got through the aggregation rule (b); not those of a, c.'
    """
    lost = [name for name in participants if name not in kept]
    if not lost:
        return f"Round {index}: all {len(participants)} updates got through the aggregation rule."
    if not kept:
        return f"Round {index}: none of {len(participants)} updates got through the aggregation rule; the model stayed."
    named = f" ({', '.join(some(kept))})"
    return (
        f"Round {index}: {len(kept)} of {len(participants)} updates got through the aggregation rule{named}; not those "
        f"of {', '.join(some(lost))}."
    )


def _common(records: Sequence[Record]) -> dict[str, str]:
    """Facts that all records share, word for word."""
    first = records[0].knows if records else {}
    return {name: words for name, words in first.items() if all(r.knows.get(name) == words for r in records)}


def _fact(name: str, words: str) -> tuple[str, Cell]:
    return name.replace("_", " "), _words(name, words)


def _words(name: str, words: str) -> Cell:
    """A fact, with a badge where no real adversary has it."""
    oracle = "oracle" in words.lower() or "oracle" in name.lower()
    plain = words.replace("(oracle)", "").removeprefix("oracle:").strip()
    return Cell(plain, badge="oracle" if oracle else "", tone="inconclusive")
