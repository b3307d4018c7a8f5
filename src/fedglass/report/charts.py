"""Small charts as inline SVG, drawn for a phone's width; their colours come from the page's style sheet."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

WIDTH = 340
EDGE = 2
SHOWN = 8
"""Curves in one chart; more would hide each other."""
ROW = 38
"""Height of a row in an interval plot: a name, and the dot below it."""
KEY = 18
"""Height of a line in a chart's key."""


@dataclass(frozen=True)
class Dot:
    """A mean with its interval, one row of an interval plot."""

    label: str
    text: str
    mean: float
    low: float | None
    high: float | None


@dataclass(frozen=True)
class Strip:
    """Many values of one kind, one row of a strip chart."""

    label: str
    text: str
    values: Sequence[float]
    colour: str = "c0"
    """The class of its dots."""


@dataclass(frozen=True)
class Axis:
    """A map from values to pixels, linear or logarithmic."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def at(self, value: float) -> float:
        """Return the pixel of a value; values beyond the axis are drawn at its end.

        >>> Axis(0, 10, 100, 200).at(5), Axis(1, 100, 0, 50, log=True).at(10)
        (150.0, 25.0)
        """
        low, high, v = self.low, self.high, min(max(value, self.low), self.high)
        if self.log:
            low, high, v = math.log10(low), math.log10(high), math.log10(v)
        return self.start + (v - low) / (high - low) * (self.end - self.start)

    def ticks(self) -> list[float]:
        return _decades(self.low, self.high) if self.log else _steps(self.low, self.high)


def interval_plot(title: str, dots: Sequence[Dot], threshold: float | None, higher_leaks: bool) -> Markup:
    """Draw one row for each dot with its 95 % interval, and shade the side of recovered images."""
    values = [v for d in dots for v in (d.mean, d.low, d.high) if v is not None]
    axis = _linear([*values, *([] if threshold is None else [threshold])], EDGE, WIDTH - EDGE)
    bottom, bands = ROW * len(dots), _bands(len(dots))
    parts = _x_axis(axis, bands, bottom)
    if threshold is not None:
        x = axis.at(threshold)
        start, end = (x, WIDTH - EDGE) if higher_leaks else (EDGE, x)
        parts.insert(0, f'<rect class="zone" x="{start:.1f}" y="0" width="{end - start:.1f}" height="{bottom}"/>')
        parts += [_line("limit", x, top, x, low) for top, low in bands]
    for row, dot in enumerate(dots):
        parts += _dot_row(dot, axis, 13 + ROW * row)
    return _svg(title, parts, bottom + 20)


def strip_chart(title: str, strips: Sequence[Strip], x_title: str) -> Markup:
    """Draw rows of values on one axis, to compare their ranges."""
    axis = _linear([value for strip in strips for value in strip.values] or [0.0], EDGE, WIDTH - EDGE)
    bottom, bands = ROW * len(strips), _bands(len(strips))
    parts = _x_axis(axis, bands, bottom)
    for row, strip in enumerate(strips):
        y = 13.0 + ROW * row
        parts += _row_names(strip.label, strip.text, y)
        kind = f"dot many {strip.colour}"
        parts += [f'<circle class="{kind}" cx="{axis.at(v):.1f}" cy="{y + 14}" r="4"/>' for v in strip.values]
    parts.append(_text("tick", WIDTH / 2, bottom + 32, x_title, "middle"))
    return _svg(title, parts, bottom + 38)


def energy_chart(
    title: str,
    curves: Sequence[Sequence[float]],
    truth: Sequence[float] = (),
    blind: Sequence[float] = (),
    iterations: int | None = None,
) -> Markup:
    """Draw the energy over the iterations on a log scale; dashed: the true data, dotted: a blind guess."""
    shown = [curve for curve in curves if len(curve)][:SHOWN]
    levels = [*sorted(set(truth))[:SHOWN], *sorted(set(blind))[:SHOWN]]
    top, bottom, start = 8, 168, 46
    y = _energy_axis([v for curve in shown for v in curve] + levels, bottom, top)
    parts = _y_grid(y, start)
    last = iterations if iterations is not None else max((len(c) - 1 for c in shown), default=1)
    parts += _x_axis(Axis(0, max(last, 1), start, WIDTH - EDGE), [(top, bottom)], bottom)
    for kind, values in (("blind", blind), ("truth", truth)):
        parts += [_line(kind, start, y.at(v), WIDTH - EDGE, y.at(v)) for v in sorted(set(values))[:SHOWN]]
    for number, curve in enumerate(shown):
        x = Axis(0, max(len(curve) - 1, 1), start, WIDTH - EDGE)
        points = " ".join(f"{x.at(i):.1f},{y.at(v):.1f}" for i, v in enumerate(curve))
        parts.append(f'<polyline class="curve c{number % 4}" points="{points}"/>')
    parts.append(_text("tick", (start + WIDTH) / 2, bottom + 32, "iteration", "middle"))
    return _svg(title, parts, bottom + 38)


def trade_off(
    title: str,
    series: Mapping[str, Sequence[tuple[float, float]]],
    x_title: str,
    y_title: str,
    *,
    log: bool = False,
) -> Markup:
    """Draw one quantity against another and join the points of a series; with `log` both axes are logarithmic.

    A single series is named at its line. Several series have a key below, where their names cannot hide each other.
    """
    top, bottom, start = 22, 190, 46
    everything = [point for points in series.values() for point in points]
    scaled = _logarithmic if log else _linear
    x = scaled([p[0] for p in everything], start, WIDTH - EDGE)
    y = scaled([p[1] for p in everything], bottom, top)
    parts = [_text("tick", EDGE, 12, y_title, "start"), *_y_grid(y, start), *_x_axis(x, [(top, bottom)], bottom)]
    for number, (label, points) in enumerate(series.items()):
        places = [(x.at(a), y.at(b)) for a, b in sorted(points)]
        joined = " ".join(f"{a:.1f},{b:.1f}" for a, b in places)
        parts.append(f'<polyline class="curve {_colour(number)}" points="{joined}"/>')
        parts += [f'<circle class="dot c{number % 4}" cx="{a:.1f}" cy="{b:.1f}" r="4"/>' for a, b in places]
        if len(series) == 1:
            # At the higher end, where the line runs away below the text.
            (a, b), anchor = (places[0], "start") if places[0][1] < places[-1][1] else (places[-1], "end")
            parts.append(_text("name", a, b - 8, _clip(label, 30), anchor, full=label))
    parts.append(_text("tick", (start + WIDTH) / 2, bottom + 32, x_title, "middle"))
    below = list(series) if len(series) > 1 else []
    return _svg(title, parts + _key(below, start, bottom + 52), bottom + 38 + KEY * len(below))


def line_chart(title: str, values: Sequence[float], last: float, x_title: str, reach: Sequence[float] = ()) -> Markup:
    """Draw values at equal distances along an axis from 0 to `last`; the vertical axis also covers `reach`."""
    top, bottom, start = 8, 168, 46
    x, y = Axis(0, last, start, WIDTH - EDGE), _linear([*values, *reach], bottom, top)
    step = last / max(len(values) - 1, 1)
    points = " ".join(f"{x.at(i * step):.1f},{y.at(v):.1f}" for i, v in enumerate(values))
    curve = f'<polyline class="curve c0" points="{points}"/>'
    named = _text("tick", (start + WIDTH) / 2, bottom + 32, x_title, "middle")
    return _svg(title, [*_y_grid(y, start), *_x_axis(x, [(top, bottom)], bottom), curve, named], bottom + 38)


def sweep_chart(
    title: str,
    places: Sequence[float],
    series: Mapping[str, Sequence[float | None]],
    blind: Sequence[float | None],
    x_title: str,
    y_title: str,
) -> Markup:
    """Draw values over a swept number at equal distances; a dotted line is the blind guess.

    None stands for a place without a measurement. The guess comes last in the key.
    """
    top, bottom, start = 22, 190, 46
    measured = [value for values in (*series.values(), blind) for value in values if value is not None]
    x, y = Axis(-0.4, len(places) - 0.6, start, WIDTH - EDGE), _linear(measured, bottom, top)
    parts = [_text("tick", EDGE, 12, y_title, "start"), *_y_grid(y, start), _line("axis", start, bottom, WIDTH, bottom)]
    parts += [_text("tick", x.at(i), bottom + 15, f"{place:g}", "middle") for i, place in enumerate(places)]
    parts += [_polyline("blind", _placed(blind, x, y))]
    for number, values in enumerate(series.values()):
        dots = _placed(values, x, y)
        parts.append(_polyline(f"curve {_colour(number)}", dots))
        parts += [f'<circle class="dot c{number % 4}" cx="{a:.1f}" cy="{b:.1f}" r="4"/>' for a, b in dots]
    parts.append(_text("tick", (start + WIDTH) / 2, bottom + 32, x_title, "middle"))
    below = bottom + 52 + KEY * len(series)
    guess = [_line("blind", start, below - 4, start + 12, below - 4)]
    guess.append(_text("name", start + 18, below, "best blind guess", "start"))
    return _svg(title, [*parts, *_key(list(series), start, bottom + 52), *guess], below + 8)


def _placed(values: Sequence[float | None], x: Axis, y: Axis) -> list[tuple[float, float]]:
    return [(x.at(i), y.at(value)) for i, value in enumerate(values) if value is not None]


def _polyline(kind: str, dots: Sequence[tuple[float, float]]) -> str:
    return f'<polyline class="{kind}" points="{" ".join(f"{a:.1f},{b:.1f}" for a, b in dots)}"/>'


def _colour(number: int) -> str:
    """Return the CSS classes of a series' line: four colours, then the same ones dashed.

    >>> _colour(1), _colour(5)
    ('c1', 'c1 again')
    """
    return f"c{number % 4}" + (" again" if number >= 4 else "")


def _key(names: Sequence[str], start: float, top: float) -> list[str]:
    """Draw the key: a piece of each series' line with its name, one below the other."""
    parts = []
    for number, name in enumerate(names):
        y = top + KEY * number
        parts.append(_line(f"curve {_colour(number)}", start, y - 4, start + 12, y - 4))
        parts.append(_text("name", start + 18, y, _clip(name, 44), "start", full=name))
    return parts


def _bands(rows: int) -> list[tuple[float, float]]:
    """Return the vertical ranges of grid lines in rows: next to the dots, so that no line crosses a name."""
    return [(ROW * row + 18.0, ROW * row + ROW - 2.0) for row in range(rows)]


def _row_names(label: str, text: str, y: float) -> list[str]:
    named = _text("name", EDGE, y, _clip(label, 30), "start", full=label)
    return [named, _text("value", WIDTH - EDGE, y, text, "end")]


def _dot_row(dot: Dot, axis: Axis, y: float) -> list[str]:
    parts = _row_names(dot.label, dot.text, y)
    if dot.low is not None and dot.high is not None:
        parts.append(_line("span", axis.at(dot.low), y + 14, axis.at(dot.high), y + 14))
    return [*parts, f'<circle class="dot" cx="{axis.at(dot.mean):.1f}" cy="{y + 14}" r="4.5"/>']


def _x_axis(axis: Axis, bands: Sequence[tuple[float, float]], bottom: float) -> list[str]:
    """Draw ticks below, and a line above each of them in every band."""
    parts = [_line("axis", axis.start, bottom, axis.end, bottom)]
    for tick in axis.ticks():
        x = axis.at(tick)
        anchor = "start" if x < axis.start + 8 else "end" if x > axis.end - 8 else "middle"
        parts += [
            *(_line("grid", x, top, x, end) for top, end in bands),
            _text("tick", x, bottom + 15, _number(tick), anchor),
        ]
    return parts


def _y_grid(axis: Axis, start: float) -> list[str]:
    parts = []
    for tick in axis.ticks():
        parts.append(_line("grid", start, axis.at(tick), WIDTH - EDGE, axis.at(tick)))
        parts.append(_text("tick", start - 6, axis.at(tick) + 4, _number(tick), "end"))
    return parts


def _energy_axis(values: Sequence[float], bottom: float, top: float) -> Axis:
    """Return a logarithmic axis from the smallest positive value, or a linear one if an energy is negative."""
    if any(v < 0 for v in values) or not any(v > 0 for v in values):
        return _linear(values or [0.0], bottom, top)
    positive = [v for v in values if v > 0]
    low, high = min(positive), max(positive)
    if len(positive) < len(values):
        low /= 10  # room below for energies of exactly zero, which a logarithm cannot place
    return Axis(low / 1.3, high * 1.3, bottom, top, log=True)


def _linear(values: Sequence[float], start: float, end: float) -> Axis:
    low, high = min(values), max(values)
    margin = (high - low) * 0.08 or abs(high) * 0.1 or 1.0
    return Axis(low - margin, high + margin, start, end)


def _logarithmic(values: Sequence[float], start: float, end: float) -> Axis:
    """Return a logarithmic axis for positive values."""
    low, high = min(values), max(values)
    margin = max((high / low) ** 0.08, 1.1)
    return Axis(low / margin, high * margin, start, end, log=True)


def _steps(low: float, high: float) -> list[float]:
    """Return three to seven round numbers between two values.

    >>> _steps(0, 10), _steps(-0.3, 1.1)
    ([0.0, 2.0, 4.0, 6.0, 8.0, 10.0], [0.0, 0.5, 1.0])
    """
    rough = (high - low) / 4
    power = 10.0 ** math.floor(math.log10(rough))
    step = min((m * power for m in (1, 2, 5, 10)), key=lambda s: abs(math.log(s / rough)))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [n * step + 0.0 for n in range(first, last + 1)]


def _decades(low: float, high: float) -> list[float]:
    """Return at most six powers of ten, or round numbers if there are fewer than two.

    >>> _decades(0.5, 2000)
    [1.0, 10.0, 100.0, 1000.0]
    """
    first, last = math.ceil(math.log10(low)), math.floor(math.log10(high))
    if last - first < 1:
        return [v for v in _steps(low, high) if low <= v <= high]
    stride = max(1, math.ceil((last - first + 1) / 6))
    return [10.0**n for n in range(first, last + 1, stride)]


def _number(value: float) -> str:
    return f"{value:.0e}".replace("e-0", "e-").replace("e+0", "e") if _extreme(value) else f"{value:g}"


def _extreme(value: float) -> bool:
    return value != 0 and not 1e-3 < abs(value) < 1e5


def _clip(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _line(kind: str, x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def _text(kind: str, x: float, y: float, text: str, anchor: str, full: str = "") -> str:
    title = f"<title>{escape(full)}</title>" if full else ""
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{title}{escape(text)}</text>'


def _svg(title: str, parts: Sequence[str], height: float) -> Markup:
    head = f'<svg class="chart" viewBox="0 0 {WIDTH} {height:.0f}" role="img" aria-label="{escape(title)}">'
    # Every text among the parts went through `_text`, which escapes it.
    return Markup(head + "".join(parts) + "</svg>")
