"""The threat model on a page: a drawing of each adversary, what all adversaries know, and what only some know."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from markupsafe import Markup, escape

from fedglass.report.page import Names, PageTable, TableCell, some
from fedglass.verdict.records import KnownFact, Record
from fedglass.verdict.texts import count
from fedglass.verdict.threat import STANDPOINTS, UNNAMED, Sight, ThreatModel

WIDTH, HEIGHT = 220, 132
SERVER = (110.0, 18.0)
CLIENTS = tuple((x, 112.0) for x in (28.0, 83.0, 137.0, 192.0))
LOOKED_AT = 0
"""The client whose update the drawn server reads; also the client that is the drawn peer."""


def drawing(standpoint: str, title: str) -> Markup | None:
    """Return the federation with its adversary and what it sees marked; None for a standpoint without a drawing.

    The colours come from the page's style sheet.
    """
    draw = _DRAWN.get(standpoint)
    if draw is None:
        return None
    head = f'<svg class="scene" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}">'
    return Markup(head + draw() + "</svg>")


def _server() -> str:
    """Draw every update on its own way to the server."""
    wires = [_arrow(x, 100, 110 + (x - 110) * 0.28, 31, number == LOOKED_AT) for number, (x, _) in enumerate(CLIENTS)]
    return "".join(
        [*wires, *_client_boxes(), _box(*SERVER, "server", marked=True), _eye(154, 18), _note(2, 52, "one update")]
    )


def _aggregate() -> str:
    """Draw updates that are summed before the server."""
    wires = [_arrow(x, 100, 110 + (x - 110) * 0.2, 81, False) for x, _ in CLIENTS]
    middle = (
        '<circle class="part" cx="110" cy="70" r="11"/><text class="sum" x="110" y="75" text-anchor="middle">Σ</text>'
    )
    parts = [*wires, _arrow(110, 58, 110, 31, True), middle, *_client_boxes()]
    return "".join([*parts, _box(*SERVER, "server", marked=True), _eye(154, 18), _note(118, 50, "only the sum")])


def _peer() -> str:
    """Draw the global model that goes back to every client."""
    wires = [_arrow(x, 100, 110 + (x - 110) * 0.28, 31, False) for n, (x, _) in enumerate(CLIENTS) if n != LOOKED_AT]
    x, y = CLIENTS[LOOKED_AT]
    parts = [*wires, _arrow(91, 31, x + 4, 99, True), *_client_boxes(peer=LOOKED_AT), _eye(x - 16, y - 25)]
    return "".join([*parts, _box(*SERVER, "server", marked=False), _note(2, 52, "global model")])


_DRAWN: dict[str, Callable[[], str]] = {"server": _server, "aggregate": _aggregate, "peer": _peer}


def _client_boxes(peer: int | None = None) -> list[str]:
    return [_box(x, y, "client", marked=n == peer, half=19) for n, (x, y) in enumerate(CLIENTS)]


def _box(x: float, y: float, text: str, marked: bool, half: float = 26) -> str:
    kind = "part adversary" if marked else "part"
    box = f'<rect class="{kind}" x="{x - half:.0f}" y="{y - 11:.0f}" width="{2 * half:.0f}" height="22" rx="4"/>'
    return f'{box}<text x="{x:.0f}" y="{y + 4:.0f}" text-anchor="middle">{text}</text>'


def _arrow(x1: float, y1: float, x2: float, y2: float, marked: bool) -> str:
    """Draw a line with a head at its end."""
    long = ((x2 - x1) ** 2 + (y2 - y1) ** 2) ** 0.5
    dx, dy = (x2 - x1) / long, (y2 - y1) / long
    head_left, head_right = ((x2 - 6 * dx - side * dy, y2 - 6 * dy + side * dx) for side in (3.5, -3.5))
    kind = "wire seen" if marked else "wire"
    line = f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2 - 4 * dx:.1f}" y2="{y2 - 4 * dy:.1f}"/>'
    points = f"{x2:.1f},{y2:.1f} {head_left[0]:.1f},{head_left[1]:.1f} {head_right[0]:.1f},{head_right[1]:.1f}"
    return f'{line}<polygon class="{kind}" points="{points}"/>'


def _eye(x: float, y: float) -> str:
    lids = f"M{x - 10:.0f} {y:.0f}Q{x:.0f} {y - 12:.0f} {x + 10:.0f} {y:.0f}Q{x:.0f} {y + 12:.0f} {x - 10:.0f} {y:.0f}Z"
    return f'<path class="eye" d="{lids}"/><circle class="pupil" cx="{x:.0f}" cy="{y:.0f}" r="3"/>'


def _note(x: float, y: float, text: str) -> str:
    return f'<text class="hint" x="{x:.0f}" y="{y:.0f}">{text}</text>'


MOST_ROUNDS = 12
"""Rounds that the page describes one by one."""


def threat_section(records: Sequence[Record], names: Names) -> dict[str, Any]:
    """Return the threat model of the records for the page.

    `common` are the facts that all adversaries know, `differences` those that only some know. `defences` come with the
    views that have them where views differ. `rounds` says which updates the aggregation rule accepted, and what
    poisoners did.
    """
    model = ThreatModel([Sight.of(record) for record in records])
    return {
        "adversaries": [_adversary(standpoint, records, names) for standpoint in model.standpoints],
        "attacks": model.attacks,
        "common": PageTable(["", ""], [[name.replace("_", " "), _cell(fact)] for name, fact in model.common.items()]),
        "differences": _differences(model, names),
        "defences": _defences(records, names),
        "rounds": _rounds(records),
    }


def _adversary(standpoint: str, records: Sequence[Record], names: Names) -> dict[str, Any]:
    """Return one standpoint, drawn and described: who could do this, and how many images are in the message."""
    group = [r for r in records if (r.standpoint if r.standpoint in STANDPOINTS else "") == standpoint]
    who, sees = STANDPOINTS.get(standpoint, UNNAMED)
    scene, views = drawing(standpoint, f"{who} {sees}"), some([names[record.view] for record in group])
    return {"who": who, "sees": sees, "scene": scene, "views": views, "lines": _crowd(standpoint, group)}


def _crowd(standpoint: str, records: Sequence[Record]) -> list[str]:
    """Say who could do this, and among how many clients an image hides.

    >>> _crowd("server", [])
    []
    """
    if standpoint == "server":
        return []
    sizes = [(len(r.participants), len(r.contributors), len(r.labels_true)) for r in records if r.contributors]
    lines = []
    for participants, contributors, images in dict.fromkeys(sizes):
        total = f", {count(images, 'image')} in all" if images else ""
        if standpoint == "peer":
            lines.append(f"Any of the {participants} participants could do this with what it receives anyway.")
            lines.append(f"The message contains images of {count(contributors, 'other client')}{total}.")
        else:
            lines.append(f"The message contains images of {count(contributors, 'client')}{total}.")
    return list(dict.fromkeys(lines))


def _differences(model: ThreatModel, names: Names) -> PageTable | None:
    """Return a row for each distinct set of facts that not all adversaries know."""
    columns = model.different_names
    if not columns:
        return None
    rows = [
        [_views_cell(sights, model, names), *(_cell(facts.get(name)) for name in columns)]
        for sights, facts in model.differences
    ]
    return PageTable(["view", *(name.replace("_", " ") for name in columns)], rows)


def _views_cell(sights: Sequence[Sight], model: ThreatModel, names: Names) -> TableCell:
    """Return the views of these sights, and their attacks where these are not all of the audit's."""
    group = ThreatModel(sights)
    everywhere = len(group.views) == len(model.views) > 1
    text = "all views" if everywhere else "; ".join(some([names[view] for view in group.views]))
    return TableCell(text, note="" if len(group.attacks) == len(model.attacks) else ", ".join(some(group.attacks)))


def _cell(fact: KnownFact | None) -> TableCell:
    """Return a fact, with a badge where no real adversary has it."""
    if fact is None:
        return TableCell("")
    return TableCell(fact.text, badge="oracle" if fact.oracle else "", tone="inconclusive")


def _defences(records: Sequence[Record], names: Names) -> list[tuple[str, Sequence[str]]]:
    """Return the defences of the messages, with their views where these differ; nothing where none is known."""
    views_by_defences: dict[tuple[str, ...], list[str]] = {}
    for record in records:
        if record.defences is not None:
            views_by_defences.setdefault(tuple(record.defences) or ("No defence.",), []).append(names[record.view])
    together = len(views_by_defences) == 1 and all(record.defences is not None for record in records)
    return [("" if together else "; ".join(some(views)), lines) for lines, views in views_by_defences.items()]


def _rounds(records: Sequence[Record]) -> list[str]:
    """Say which updates the aggregation rule accepted in each audited round, and what poisoners did there."""
    rounds = dict.fromkeys((r.round, tuple(r.participants), tuple(r.accepted)) for r in records if r.participants)
    lines = [_accepted(*facts) for facts in sorted(rounds)]
    return some([*lines, *(line for record in records for line in record.behaviours)], MOST_ROUNDS)


def _all(participants: Sequence[str]) -> str:
    return "the only update" if len(participants) == 1 else f"all {len(participants)} updates"


def _accepted(index: int, participants: Sequence[str], accepted: Sequence[str]) -> str:
    """Describe one round.

    >>> _accepted(3, ("a", "b", "c"), ("b",))
    'Round 3: the aggregation rule accepted 1 of 3 updates (b) and rejected those of a, c.'
    """
    rejected = [name for name in participants if name not in accepted]
    if not rejected:
        return f"Round {index}: the aggregation rule accepted {_all(participants)}."
    if not accepted:
        return f"Round {index}: the aggregation rule rejected {_all(participants)}; the model did not change."
    return (
        f"Round {index}: the aggregation rule accepted {len(accepted)} of {len(participants)} updates "
        f"({', '.join(some(accepted))}) and rejected those of {', '.join(some(rejected))}."
    )
