"""Charts are well-formed, stay inside their frame and escape what they are given."""

from __future__ import annotations

import math
import re
import xml.etree.ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedglass.report.charts import (
    WIDTH,
    Axis,
    ChartPoint,
    ChartRow,
    energy_chart,
    front_chart,
    interval_plot,
    strip_chart,
    sweep_chart,
    trade_off,
)

NASTY = "<script>alert(1)</script>\"'&"
finite = st.floats(-1e12, 1e12)


def inside(svg: str) -> None:
    """Every coordinate is finite and within the view box."""
    root = ET.fromstring(svg)
    _, _, width, height = map(float, root.attrib["viewBox"].split())
    assert width == WIDTH
    for element in root.iter():
        for name in ("x", "x1", "x2", "cx"):
            assert -0.1 <= float(element.attrib.get(name, 0)) <= width + 0.1
        for name in ("y", "y1", "y2", "cy"):
            assert -0.1 <= float(element.attrib.get(name, 0)) <= height + 0.1
        for x, y in re.findall(r"(\S+),(\S+)", element.attrib.get("points", "")):
            assert 0 <= float(x) <= width
            assert 0 <= float(y) <= height


@given(st.lists(st.tuples(finite, finite, finite).map(sorted), min_size=1, max_size=5), finite, st.booleans())
def test_interval_plot(rows: list[list[float]], threshold: float, higher: bool) -> None:
    inside(
        interval_plot(
            "t", [ChartRow(NASTY, NASTY, [m], low=low, high=high) for low, m, high in rows], threshold, higher
        )
    )


@given(
    st.lists(st.lists(finite, max_size=20), max_size=4),
    st.lists(finite, max_size=3),
    st.lists(finite, max_size=3),
    st.none() | st.integers(0, 10**6),
)
def test_energy_chart(curves: list[list[float]], truth: list[float], blind: list[float], steps: int | None) -> None:
    inside(energy_chart(NASTY, curves, truth, blind, steps))


@given(st.lists(st.tuples(finite, finite), min_size=1, max_size=6))
def test_trade_off(points: list[tuple[float, float]]) -> None:
    inside(trade_off("t", {NASTY: points}, NASTY, NASTY))
    inside(trade_off("t", {NASTY: points, "other": points, "third": points}, NASTY, NASTY))


@given(st.lists(st.tuples(finite, st.none() | finite, finite), min_size=2, max_size=9))
def test_sweep_chart(points: list[tuple[float, float | None, float]]) -> None:
    places, values, blind = zip(*points, strict=True)
    inside(sweep_chart(NASTY, places, {NASTY: values, "other": blind}, blind, NASTY, NASTY))


@given(st.lists(st.lists(finite, max_size=20), max_size=4))
def test_strip_chart(rows: list[list[float]]) -> None:
    svg = strip_chart(NASTY, [ChartRow(NASTY, NASTY, row) for row in rows], NASTY)
    inside(svg)
    assert len(list(ET.fromstring(svg).iter("circle"))) == sum(map(len, rows))


def test_strips_share_one_axis() -> None:
    svg = ET.fromstring(strip_chart("t", [ChartRow("a", "", [0.0, 1.0]), ChartRow("b", "", [1.0, 2.0])], "x"))
    places = [float(circle.attrib["cx"]) for circle in svg.iter("circle")]
    assert places[1] == places[2]
    assert places[1] - places[0] == pytest.approx(places[3] - places[2], abs=0.2)


def test_names_of_several_series_do_not_hide_each_other() -> None:
    """Curves that start at one point, with names that begin alike."""
    names = ["this package's coarse_to_fine", "this package's coarse_to_fine_pruned"]
    svg = ET.fromstring(trade_off("t", {name: [(0.0, 50.0), (1.0, 10.0)] for name in names}, "x", "y"))
    found = [e for e in svg.iter("text") if e.attrib["class"] == "name"]
    assert ["".join(e.itertext()) for e in found] == [name * 2 for name in names]  # the tooltip, then the text
    first, second = (float(e.attrib["y"]) for e in found)
    assert second - first >= 16


def test_text_is_escaped() -> None:
    svg = interval_plot(NASTY, [ChartRow(NASTY, NASTY, [1.0])], None, True)
    assert "<script" not in svg
    assert [e.text for e in ET.fromstring(svg).iter("text") if e.attrib["class"] == "value"] == [NASTY]


def test_energies_are_on_a_log_scale() -> None:
    """Each factor of ten takes the same height, and a true energy of zero is drawn at the bottom."""
    svg = ET.fromstring(energy_chart("t", [[100.0, 10.0, 1.0]], truth=[0.0]))
    points = svg.findall("polyline")[0].attrib["points"].split()
    first, second, third = (float(point.split(",")[1]) for point in points)
    assert second - first == pytest.approx(third - second, abs=0.2)
    (truth,) = [e for e in svg.findall("line") if e.attrib["class"] == "truth"]
    assert float(truth.attrib["y1"]) > third


def test_the_shaded_side_is_the_leaking_one() -> None:
    dots = [ChartRow("a", "1", [10.0]), ChartRow("b", "2", [30.0])]
    for higher, leaking in ((True, 1), (False, 0)):
        svg = ET.fromstring(interval_plot("t", dots, 20.0, higher))
        (zone,) = svg.findall("rect")
        left = float(zone.attrib["x"])
        right = left + float(zone.attrib["width"])
        places = [float(c.attrib["cx"]) for c in svg.findall("circle")]
        assert [left < x < right for x in places].index(True) == leaking


@given(st.floats(1e-9, 1e9), st.floats(1.01, 1e6), st.booleans())
def test_ticks_are_few_and_on_the_axis(low: float, factor: float, log: bool) -> None:
    axis = Axis(low, low * factor, 0, 100, log=log)
    ticks = axis.ticks()
    assert 1 <= len(ticks) <= 8
    assert all(low * (1 - 1e-6) <= t <= low * factor * (1 + 1e-6) for t in ticks)
    assert all(math.isfinite(axis.at(t)) for t in ticks)


def test_front_chart() -> None:
    points = [ChartPoint(0.001, 0.5, 0.4, 0.6, marked=True), ChartPoint(1.0, 0.9, 0.9, 0.9), ChartPoint(0.0, 0, 0, 0)]
    drawn = front_chart(
        NASTY, {NASTY: points, "other": []}, [(0.001, 0.5)], NASTY, NASTY,
        span=(5e-4, 1.0), limit=0.05, blind=0.001, levels={NASTY: 0.1, "no defence": 0.95},
    )  # fmt: skip
    inside(drawn)
    assert drawn.count('class="ring"') == 1
    inside(front_chart("t", {}, [], "x", "y", span=(5e-4, 1.0), limit=None, blind=0.001, levels={"chance": 0.1}))
