"""Small charts as inline SVG, drawn for a phone's width; their colours come from the page's style sheet."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

WIDTH = 340
EDGE = 2
START = 46
"""Left end of the horizontal axis of a chart with numbers at its vertical axis."""
SHOWN = 8
"""Curves in one chart; more would hide each other."""
ROW = 38
"""Height of a row in an interval plot: a name, and the dot below it."""
KEY = 18
"""Height of a line in a chart's key."""


@dataclass(frozen=True)
class ChartRow:
    """A row of an interval plot or a strip chart: its name, its figures as text, and its dots."""

    label: str
    text: str
    values: Sequence[float]
    """One mean in an interval plot, any number of values in a strip chart."""
    colour: str = "c0"
    """The class of the dots in a strip chart."""
    low: float | None = None
    high: float | None = None
    """The interval of the mean in an interval plot, if it has one."""


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


def interval_plot(title: str, rows: Sequence[ChartRow], threshold: float | None, higher_leaks: bool) -> Markup:
    """Draw one row for each mean with its 95 % interval, and shade the side of recovered images."""
    values = [v for row in rows for v in (*row.values, row.low, row.high) if v is not None]
    axis = _linear([*values, *([] if threshold is None else [threshold])], EDGE, WIDTH - EDGE)
    bottom, bands = ROW * len(rows), _bands(len(rows))
    parts = _x_axis(axis, bands, bottom)
    if threshold is not None:
        x = axis.at(threshold)
        start, end = (x, WIDTH - EDGE) if higher_leaks else (EDGE, x)
        parts.insert(0, _zone(start, end, 0, bottom))
        parts += [_line("limit", x, top, x, low) for top, low in bands]
    for number, row in enumerate(rows):
        y = 13 + ROW * number
        parts += _row_names(row, y)
        if row.low is not None and row.high is not None:
            parts.append(_line("span", axis.at(row.low), y + 14, axis.at(row.high), y + 14))
        parts += [f'<circle class="dot" cx="{axis.at(v):.1f}" cy="{y + 14}" r="4.5"/>' for v in row.values]
    return _svg(title, parts, bottom + 20)


def strip_chart(title: str, rows: Sequence[ChartRow], x_title: str) -> Markup:
    """Draw rows of values on one axis, to compare their ranges."""
    axis = _linear([value for row in rows for value in row.values] or [0.0], EDGE, WIDTH - EDGE)
    bottom = ROW * len(rows)
    parts = _x_axis(axis, _bands(len(rows)), bottom)
    for number, row in enumerate(rows):
        y = 13.0 + ROW * number
        parts += _row_names(row, y)
        parts += [_dot(f"many {row.colour}", axis.at(value), f"{y + 14}") for value in row.values]
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
    top, bottom = 8, 168
    y = _energy_axis([v for curve in shown for v in curve] + levels, bottom, top)
    last = iterations if iterations is not None else max((len(c) - 1 for c in shown), default=1)
    parts = _axes(Axis(0, max(last, 1), START, WIDTH - EDGE), y)
    for kind, values in (("blind", blind), ("truth", truth)):
        parts += [_line(kind, START, y.at(v), WIDTH - EDGE, y.at(v)) for v in sorted(set(values))[:SHOWN]]
    for number, curve in enumerate(shown):
        x = Axis(0, max(len(curve) - 1, 1), START, WIDTH - EDGE)
        parts.append(_polyline(f"curve c{number % 4}", _placed(curve, x, y)))
    return _with_key(title, parts, "iteration", bottom)


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
    top, bottom = 22, 190
    everything = [point for points in series.values() for point in points]
    scaled = _logarithmic if log else _linear
    x = scaled([p[0] for p in everything], START, WIDTH - EDGE)
    y = scaled([p[1] for p in everything], bottom, top)
    parts = _axes(x, y, y_title)
    for number, (label, points) in enumerate(series.items()):
        places = [(x.at(a), y.at(b)) for a, b in sorted(points)]
        parts += _curve(number, places)
        if len(series) == 1:
            # At the higher end, where the line runs away below the text.
            (a, b), anchor = (places[0], "start") if places[0][1] < places[-1][1] else (places[-1], "end")
            parts.append(_text("name", a, b - 8, _clip(label, 30), anchor, full=label))
    return _with_key(title, parts, x_title, bottom, list(series) if len(series) > 1 else [])


@dataclass(frozen=True)
class ChartPoint:
    """A point of a front chart, with the interval of its vertical value."""

    x: float
    y: float
    low: float
    high: float
    marked: bool = False
    """Whether it is ringed."""


def front_chart(
    title: str,
    series: Mapping[str, Sequence[ChartPoint]],
    front: Sequence[tuple[float, float]],
    x_title: str,
    y_title: str,
    *,
    span: tuple[float, float],
    limit: float | None,
    blind: float,
    levels: Mapping[str, float],
) -> Markup:
    """Draw points with intervals over a logarithmic axis that covers `span`, and the front of the best ones as a line.

    The side above `limit` is shaded. Dotted: a blind guess, upright, and up to two `levels` of the vertical axis.
    """
    top, bottom = 22, 190
    points = [point for some in series.values() for point in some]
    x = Axis(span[0], span[1], START, WIDTH - EDGE, log=True)
    y = _linear([*levels.values(), *(v for p in points for v in (p.low, p.high))], bottom, top)
    parts = _axes(x, y, y_title)
    if limit is not None:
        parts.insert(0, _zone(x.at(limit), WIDTH - EDGE, top, bottom))
        parts.append(_line("limit", x.at(limit), top, x.at(limit), bottom))
    parts.append(_line("blind", x.at(blind), top, x.at(blind), bottom))
    for (name, level), anchor in zip(levels.items(), ("end", "start"), strict=False):  # on two sides: they may be close
        parts.append(_line("blind", START, y.at(level), WIDTH - EDGE, y.at(level)))
        parts.append(_text("tick", START + 4 if anchor == "start" else WIDTH - EDGE, y.at(level) - 4, name, anchor))
    parts.append(_polyline("front", [(x.at(a), y.at(b)) for a, b in front]))
    for number, some in enumerate(series.values()):
        for p in some:
            parts.append(_line(f"bar c{number % 4}", x.at(p.x), y.at(p.low), x.at(p.x), y.at(p.high)))
            parts.append(_dot(f"c{number % 4}", x.at(p.x), f"{y.at(p.y):.1f}"))
            parts += [f'<circle class="ring" cx="{x.at(p.x):.1f}" cy="{y.at(p.y):.1f}" r="8"/>'] if p.marked else []
    return _with_key(title, parts, x_title, bottom, list(series))


def line_chart(title: str, values: Sequence[float], last: float, x_title: str, reach: Sequence[float] = ()) -> Markup:
    """Draw values at equal distances along an axis from 0 to `last`; the vertical axis also covers `reach`."""
    top, bottom = 8, 168
    x, y = Axis(0, last, START, WIDTH - EDGE), _linear([*values, *reach], bottom, top)
    step = last / max(len(values) - 1, 1)
    curve = _polyline("curve c0", [(x.at(i * step), y.at(v)) for i, v in enumerate(values)])
    return _with_key(title, [*_axes(x, y), curve], x_title, bottom)


def sweep_chart(
    title: str,
    places: Sequence[float],
    series: Mapping[str, Sequence[float | None]],
    blind: Sequence[float | None],
    x_title: str,
    y_title: str,
    notes: Sequence[str] = (),
) -> Markup:
    """Draw values over a swept number at equal distances; a dotted line is the blind guess.

    None stands for a place without a measurement. The guess comes last in the key. `notes` are lines below the places,
    such as the accuracy of the model there.
    """
    top, bottom = 22, 190
    measured = [value for values in (*series.values(), blind) for value in values if value is not None]
    x, y = Axis(-0.4, len(places) - 0.6, START, WIDTH - EDGE), _linear(measured, bottom, top)
    parts = [_text("tick", EDGE, 12, y_title, "start"), *_y_grid(y), _line("axis", START, bottom, WIDTH, bottom)]
    parts += [_text("tick", x.at(i), bottom + 15, f"{place:g}", "middle") for i, place in enumerate(places)]
    parts += [_text("tick", x.at(i), bottom + 29, note, "middle") for i, note in enumerate(notes)]
    parts += [_polyline("blind", _placed(blind, x, y))]
    for number, values in enumerate(series.values()):
        parts += _curve(number, _placed(values, x, y))
    bottom += 14 if notes else 0
    parts.append(_x_title(x_title, bottom))
    below = bottom + 52 + KEY * len(series)
    guess = [_line("blind", START, below - 4, START + 12, below - 4)]
    guess.append(_text("name", START + 18, below, "best blind guess", "start"))
    return _svg(title, [*parts, *_key(list(series), bottom + 52), *guess], below + 8)


def _axes(x: Axis, y: Axis, y_title: str = "") -> list[str]:
    """Draw both axes with their grids, and the title of the vertical one above it."""
    title = [_text("tick", EDGE, 12, y_title, "start")] if y_title else []
    return [*title, *_y_grid(y), *_x_axis(x, [(y.end, y.start)], y.start)]


def _with_key(title: str, parts: Sequence[str], x_title: str, bottom: float, names: Sequence[str] = ()) -> Markup:
    """Return a chart with the title of its horizontal axis, and the names of its series below."""
    below = [_x_title(x_title, bottom), *_key(names, bottom + 52)]
    return _svg(title, [*parts, *below], bottom + 38 + KEY * len(names))


def _zone(left: float, right: float, top: int, bottom: int) -> str:
    return f'<rect class="zone" x="{left:.1f}" y="{top}" width="{right - left:.1f}" height="{bottom - top}"/>'


def _placed(values: Sequence[float | None], x: Axis, y: Axis) -> list[tuple[float, float]]:
    return [(x.at(i), y.at(value)) for i, value in enumerate(values) if value is not None]


def _polyline(kind: str, dots: Sequence[tuple[float, float]]) -> str:
    return f'<polyline class="{kind}" points="{" ".join(f"{a:.1f},{b:.1f}" for a, b in dots)}"/>'


def _dot(kind: str, x: float, y: str) -> str:
    return f'<circle class="dot {kind}" cx="{x:.1f}" cy="{y}" r="4"/>'


def _curve(number: int, dots: Sequence[tuple[float, float]]) -> list[str]:
    """Draw the line of a series and its dots."""
    line = _polyline(f"curve {_colour(number)}", dots)
    return [line, *(_dot(f"c{number % 4}", a, f"{b:.1f}") for a, b in dots)]


def _x_title(title: str, bottom: float) -> str:
    """Draw the title of the horizontal axis of a chart that also has a vertical one."""
    return _text("tick", (START + WIDTH) / 2, bottom + 32, title, "middle")


def _colour(number: int) -> str:
    """Return the CSS classes of a series' line: four colours, then the same ones dashed.

    >>> _colour(1), _colour(5)
    ('c1', 'c1 again')
    """
    return f"c{number % 4}" + (" again" if number >= 4 else "")


def _key(names: Sequence[str], top: float) -> list[str]:
    """Draw the key: a piece of each series' line with its name, one below the other."""
    parts = []
    for number, name in enumerate(names):
        y = top + KEY * number
        parts.append(_line(f"curve {_colour(number)}", START, y - 4, START + 12, y - 4))
        parts.append(_text("name", START + 18, y, _clip(name, 44), "start", full=name))
    return parts


def _bands(rows: int) -> list[tuple[float, float]]:
    """Return the vertical ranges of grid lines in rows: next to the dots, so that no line crosses a name."""
    return [(ROW * row + 18.0, ROW * row + ROW - 2.0) for row in range(rows)]


def _row_names(row: ChartRow, y: float) -> list[str]:
    named = _text("name", EDGE, y, _clip(row.label, 30), "start", full=row.label)
    return [named, _text("value", WIDTH - EDGE, y, row.text, "end")]


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


def _y_grid(axis: Axis) -> list[str]:
    parts = []
    for tick in axis.ticks():
        parts.append(_line("grid", START, axis.at(tick), WIDTH - EDGE, axis.at(tick)))
        parts.append(_text("tick", START - 6, axis.at(tick) + 4, _number(tick), "end"))
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
    extreme = value != 0 and not 1e-3 < abs(value) < 1e5
    return f"{value:.0e}".replace("e-0", "e-").replace("e+0", "e") if extreme else f"{value:g}"


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
