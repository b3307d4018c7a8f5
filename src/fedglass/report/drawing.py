"""Small drawings of who sees what in a federation; their colours come from the page's style sheet."""

from __future__ import annotations

from collections.abc import Callable

from markupsafe import Markup, escape

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
