"""What a table's page draws: along an axis that one case was measured on, or over its rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup


@dataclass(frozen=True)
class Curve:
    """Values at equal distances along an axis from 0 to `last`."""

    title: str
    axis: str
    last: float
    values: Sequence[float]


@dataclass(frozen=True)
class Lines:
    """Points on logarithmic axes, by the name of the line that joins them."""

    title: str
    axis: str
    points: Mapping[str, Sequence[tuple[float, float]]]


@dataclass(frozen=True)
class Chart:
    """A drawing with its caption."""

    title: str
    svg: Markup
    note: str = ""
