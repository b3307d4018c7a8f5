"""What was measured along an axis in one case, as a drawing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

WIDTH, HEIGHT, LEFT, BOTTOM, TOP, RIGHT = 300, 170, 38, 28, 10, 8


@dataclass(frozen=True)
class Curve:
    """Values at equal distances along an axis from 0 to `last`, none above 1."""

    title: str
    axis: str
    last: float
    values: Sequence[float]


@dataclass(frozen=True)
class Chart:
    """A drawing with its caption."""

    title: str
    svg: Markup
    note: str = ""


def drawn(curve: Curve) -> Markup:
    """The curve as a polyline; the vertical axis ends at 1.

    >>> "polyline" in drawn(Curve("cosine", "alpha", 1.0, [0.8, 0.9, 0.7]))
    True
    """
    values = curve.values
    low = min(0.9, *values)
    low = max(-1.0, (low * 10 // 1) / 10)
    wide, high = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
    points = " ".join(
        f"{LEFT + wide * i / (len(values) - 1):.1f},{TOP + high * (1 - v) / (1 - low):.1f}"
        for i, v in enumerate(values)
    )
    base = HEIGHT - BOTTOM
    parts = [
        f'<line class="grid" x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}" stroke="var(--rule)"/>'
        f'<text x="{LEFT - 5}" y="{y + 4:.1f}" text-anchor="end" font-size="11" fill="var(--muted)">{value:.2f}</text>'
        for value, y in ((1.0, TOP), ((1 + low) / 2, TOP + high / 2), (low, base))
    ]
    ends = ((LEFT, "start", "0"), (WIDTH - RIGHT, "end", f"{curve.last:g}"), (LEFT + wide / 2, "middle", curve.axis))
    parts += [
        f'<text x="{x:.0f}" y="{HEIGHT - 10}" text-anchor="{anchor}" font-size="11" fill="var(--muted)">'
        f"{escape(text)}</text>"
        for x, anchor, text in ends
    ]
    parts.append(f'<polyline points="{points}" fill="none" stroke="var(--accent)" stroke-width="1.8"/>')
    return Markup(
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(curve.title)}">{"".join(parts)}</svg>'
    )
