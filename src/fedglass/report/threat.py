"""The one threat model of a page: who sees what, what all of them know, and in what they differ."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

from fedglass.report.page import Cell, Names, Table, some
from fedglass.verdict.records import Record
from fedglass.verdict.texts import count

# Small drawings of who sees what in a federation; their colours come from the page's style sheet.


WIDTH, HEIGHT = 220, 132
SERVER = (110.0, 18.0)
CLIENTS = tuple((x, 112.0) for x in (28.0, 83.0, 137.0, 192.0))
LOOKED_AT = 0
"""The client at which the drawing's server looks; also the one that is the drawing's peer."""


def drawing(standpoint: str, title: str) -> Markup | None:
    """The federation with its adversary, and what that sees, marked; None of a standpoint that has no drawing."""
    draw = _DRAWN.get(standpoint)
    if draw is None:
        return None
    head = f'<svg class="scene" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}">'
    return Markup(head + draw() + "</svg>")


def _server() -> str:
    """Every update reaches the server by itself."""
    wires = [_arrow(x, 100, 110 + (x - 110) * 0.28, 31, number == LOOKED_AT) for number, (x, _) in enumerate(CLIENTS)]
    return "".join([*wires, *_people(), _box(*SERVER, "server", seen=True), _eye(154, 18), _note(2, 52, "one update")])


def _aggregate() -> str:
    """Updates meet before the server."""
    wires = [_arrow(x, 100, 110 + (x - 110) * 0.2, 81, False) for x, _ in CLIENTS]
    middle = (
        '<circle class="part" cx="110" cy="70" r="11"/><text class="sum" x="110" y="75" text-anchor="middle">Σ</text>'
    )
    parts = [*wires, _arrow(110, 58, 110, 31, True), middle, *_people()]
    return "".join([*parts, _box(*SERVER, "server", seen=True), _eye(154, 18), _note(118, 50, "only the sum")])


def _peer() -> str:
    """What the server makes of all updates goes back to every client."""
    wires = [_arrow(x, 100, 110 + (x - 110) * 0.28, 31, False) for n, (x, _) in enumerate(CLIENTS) if n != LOOKED_AT]
    x, y = CLIENTS[LOOKED_AT]
    parts = [*wires, _arrow(91, 31, x + 4, 99, True), *_people(peer=LOOKED_AT), _eye(x - 16, y - 25)]
    return "".join([*parts, _box(*SERVER, "server", seen=False), _note(2, 52, "global model")])


_DRAWN: dict[str, Callable[[], str]] = {"server": _server, "aggregate": _aggregate, "peer": _peer}


def _people(peer: int | None = None) -> list[str]:
    return [_box(x, y, "client", seen=n == peer, half=19) for n, (x, y) in enumerate(CLIENTS)]


def _box(x: float, y: float, text: str, seen: bool, half: float = 26) -> str:
    kind = "part adversary" if seen else "part"
    box = f'<rect class="{kind}" x="{x - half:.0f}" y="{y - 11:.0f}" width="{2 * half:.0f}" height="22" rx="4"/>'
    return f'{box}<text x="{x:.0f}" y="{y + 4:.0f}" text-anchor="middle">{text}</text>'


def _arrow(x1: float, y1: float, x2: float, y2: float, seen: bool) -> str:
    """A line with a head at its end."""
    long = ((x2 - x1) ** 2 + (y2 - y1) ** 2) ** 0.5
    dx, dy = (x2 - x1) / long, (y2 - y1) / long
    left, right = ((x2 - 6 * dx - side * dy, y2 - 6 * dy + side * dx) for side in (3.5, -3.5))
    kind = "wire seen" if seen else "wire"
    line = f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2 - 4 * dx:.1f}" y2="{y2 - 4 * dy:.1f}"/>'
    points = f"{x2:.1f},{y2:.1f} {left[0]:.1f},{left[1]:.1f} {right[0]:.1f},{right[1]:.1f}"
    return f'{line}<polygon class="{kind}" points="{points}"/>'


def _eye(x: float, y: float) -> str:
    lids = f"M{x - 10:.0f} {y:.0f}Q{x:.0f} {y - 12:.0f} {x + 10:.0f} {y:.0f}Q{x:.0f} {y + 12:.0f} {x - 10:.0f} {y:.0f}Z"
    return f'<path class="eye" d="{lids}"/><circle class="pupil" cx="{x:.0f}" cy="{y:.0f}" r="3"/>'


def _note(x: float, y: float, text: str) -> str:
    return f'<text class="told" x="{x:.0f}" y="{y:.0f}">{text}</text>'


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
