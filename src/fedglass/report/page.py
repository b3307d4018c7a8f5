"""What every fedglass page is made of: the template environment and the values its macros take."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from fedglass import __version__
from fedglass.core.errors import UsageError
from fedglass.core.files import write_atomic
from fedglass.report.pictures import Inlined
from fedglass.verdict.texts import percent


@dataclass(frozen=True)
class Cell:
    """A table cell: its text, a quieter note after it, and a badge such as `oracle`."""

    text: str
    note: str = ""
    badge: str = ""
    tone: str = ""
    """Colours the badge: leak, clear, inconclusive, incomplete or nothing."""


@dataclass(frozen=True)
class Table:
    """Columns and rows; the first cell of a row is its heading. On a phone each row becomes a card."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Cell | str]]
    caption: str = ""


@dataclass(frozen=True)
class Pair:
    """An original (None where nobody has it) beside its reconstruction, and what is written below them."""

    original: Inlined | None
    reconstruction: Inlined
    scores: Sequence[str] = field(default_factory=tuple)
    lines: Sequence[str] = field(default_factory=tuple)
    leaked: bool = False
    near: bool = False
    """Not recovered by the gate's rule, but partly recognisable."""
    raw: Inlined | None = None
    """The reconstruction before it was refined, where it was."""
    film: Inlined | None = None
    """Pictures on the way of the refinement, side by side."""
    film_caption: str = ""


def whole(text: str) -> str:
    """Return a text with no line break between a number and its unit.

    >>> whole("20 dB in 5 % of cases")
    '20\\xa0dB in 5\\xa0% of cases'
    """
    return text.replace(" dB", "\u00a0dB").replace(" %", "\u00a0%")


@functools.cache
def environment() -> Environment:
    """Templates with every value escaped and every unknown name an error."""
    found = Environment(
        loader=PackageLoader("fedglass.report", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    found.filters["whole"] = whole
    return found


def render(template: str, **values: Any) -> str:
    """A whole page; templates extend `base.html` and use the macros of `macros.html`."""
    return environment().get_template(template).render(fedglass_version=__version__, percent=percent, **values)


def write_page(path: Path, html: str) -> Path:
    """Write a page in one step."""
    try:
        write_atomic(path, html)
    except OSError as error:
        raise UsageError(f"Cannot write the report {path}: {error.strerror}; choose another file.") from error
    return path
