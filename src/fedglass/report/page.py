"""The building blocks of every page: the template environment, the values of its macros, and inlined pictures."""

from __future__ import annotations

import base64
import errno
import functools
import io
import struct
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from PIL import Image

from fedglass import __version__
from fedglass.core.errors import UsageError
from fedglass.core.files import RefusedFile, read_file, write_atomic
from fedglass.core.text import values_by_key
from fedglass.verdict.doubts import Severity
from fedglass.verdict.records import ROUNDS, Record
from fedglass.verdict.texts import Flag, percent

LARGEST = 8 * 2**20
"""Largest picture in bytes; no attack can handle larger images."""
BUDGET = 32 * 2**20
"""Bytes of all pictures in one page, so that a browser can still open it."""


@dataclass(frozen=True)
class InlinePicture:
    """A picture inside the page, or the reason why it is missing."""

    uri: str | None
    alt: str
    missing: str = ""
    width: int = 0
    height: int = 0


@dataclass
class Album:
    """The pictures of one audit directory for one page; only files inside the directory are read."""

    root: Path
    budget: int = BUDGET
    shows: bool = True
    """Whether the page has pictures at all."""
    _pictures: dict[str, tuple[bytes, int, int] | str] = field(default_factory=dict)

    def inline(self, path: str, alt: str) -> InlinePicture:
        """Return the picture at a path relative to the root, or the reason why it cannot be shown."""
        loaded = self._load(path)
        if isinstance(loaded, str):
            return InlinePicture(None, alt, missing=loaded)
        data, width, height = loaded
        if not self.shows:
            return InlinePicture(None, alt, missing="left out")
        if len(data) > self.budget:
            return InlinePicture(None, alt, missing=f"left out to keep the page small: {path}")
        self.budget -= len(data)
        return InlinePicture(f"data:image/png;base64,{base64.b64encode(data).decode()}", alt, "", width, height)

    @property
    def holes(self) -> list[str]:
        """The pictures that were requested and cannot be shown, with the reason: `missing: pictures/a_0.png`."""
        return [reason for reason in self._pictures.values() if isinstance(reason, str)]

    def content(self, path: str) -> bytes | None:
        """Return the bytes of a picture, to recognise equal originals."""
        loaded = self._load(path)
        return None if isinstance(loaded, str) else loaded[0]

    def _load(self, path: str) -> tuple[bytes, int, int] | str:
        if path not in self._pictures:
            self._pictures[path] = _read(self.root, path)
        return self._pictures[path]


def _read(root: Path, path: str) -> tuple[bytes, int, int] | str:
    try:
        data = read_file(root / path, LARGEST, within=root)
    except FileNotFoundError:
        return f"missing: {path}"
    except RefusedFile as error:  # its text names folders of this machine
        if error.errno == errno.EFBIG:
            return f"too large: {path}"
        return f"refused, not a regular file inside the audit directory: {path}"
    except (OSError, ValueError):
        return f"unreadable: {path}"
    size = _png_size(data)
    return f"not a picture: {path}" if size is None else (data, *size)


def _png_size(data: bytes) -> tuple[int, int] | None:
    """Return width and height of an undamaged PNG, and None for anything else."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(io.BytesIO(data), formats=["PNG"]) as image:
                image.load()
                return image.size
    except (
        OSError,
        SyntaxError,
        ValueError,
        EOFError,
        struct.error,
        Image.DecompressionBombError,
        Image.DecompressionBombWarning,
    ):
        return None


@dataclass(frozen=True)
class ChartFigure:
    """A chart with its title and note."""

    title: str
    svg: Markup
    note: str = ""
    labels: Sequence[Flag] = ()
    """Doubts about the shown figures."""


@dataclass(frozen=True)
class TableCell:
    """A table cell: its text, a quieter note after it, and a badge such as `oracle`."""

    text: str
    note: str = ""
    badge: str = ""
    tone: str = ""
    """Colour of the badge: leak, clear, inconclusive, incomplete or empty."""


@dataclass(frozen=True)
class PageTable:
    """A table; the first cell of a row is its heading. On a phone each row becomes a card."""

    columns: Sequence[str]
    rows: Sequence[Sequence[TableCell | str]]


@dataclass(frozen=True)
class Pair:
    """An original (None if it is unknown) with its reconstruction, and the text below them."""

    original: InlinePicture | None
    reconstruction: InlinePicture
    scores: Sequence[str] = field(default_factory=tuple)
    lines: Sequence[str] = field(default_factory=tuple)
    leaked: bool = False
    near: bool = False
    """Whether it does not count as recovered, but is partly recognisable."""
    raw: InlinePicture | None = None
    """The reconstruction before its refinement, if it was refined."""
    film: InlinePicture | None = None
    """Intermediate pictures of the refinement side by side."""
    film_caption: str = ""


def tone(severity: Severity) -> str:
    """Return the colour of a doubt."""
    return {"serious": "leak", "warning": "inconclusive", "info": ""}[severity]


def anchor(kind: str) -> str:
    """Return the address of a doubt's explanation on the page."""
    return f"doubt-{kind.replace('_', '-')}"


def term_anchor(name: str) -> str:
    """Return the address of a term in the page's glossary."""
    return f"term-{name.lower().replace(' ', '-')}"


def unbroken(text: str) -> str:
    """Return a text with no line break between a number and its unit.

    >>> unbroken("20 dB in 5 % of cases")
    '20\\xa0dB in 5\\xa0% of cases'
    """
    return text.replace(" dB", "\u00a0dB").replace(" %", "\u00a0%")


@functools.cache
def environment() -> Environment:
    """Return the templates; every value is escaped, and an unknown name is an error."""
    templates = Environment(
        loader=PackageLoader("fedglass.report", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    templates.filters.update(unbroken=unbroken, tone=tone, anchor=anchor, term_anchor=term_anchor)
    return templates


def render(template: str, **values: Any) -> str:
    """Return a page; templates extend `base.html` and use the macros of `macros.html`."""
    return environment().get_template(template).render(fedglass_version=__version__, percent=percent, **values)


def write_page(path: Path, html: str) -> Path:
    """Write a page atomically, and return its path."""
    try:
        write_atomic(path, html)
    except OSError as error:
        raise UsageError(f"Cannot write the report {path}: {error.strerror}; choose another file.") from error
    return path


Names = Mapping[str, str]
"""View of a record -> its short name, for tables and charts without room for a sentence."""


def short_names(records: Sequence[Record]) -> dict[str, str]:
    """Return a distinct name for every view; a view without a short name keeps its sentence."""
    record_by_view = {record.view: record for record in records}
    short = {view: _short(record) for view, record in record_by_view.items()}
    with_round = {view: f"{name}, round {record_by_view[view].round}" for view, name in short.items()}
    return _distinct(_distinct(short, with_round), {view: view for view in record_by_view})


def _distinct(names: Names, longer: Names) -> dict[str, str]:
    """Return the names, with the longer name for views that would share one."""
    counts = Counter(names.values())
    return {view: name if counts[name] == 1 else longer[view] for view, name in names.items()}


def _short(record: Record) -> str:
    if not record.view_name:
        return record.view
    together = record.standpoint == "aggregate" and record.contributors
    return f"{record.view_name} of {len(record.contributors)}" if together else record.view_name


def some(texts: Sequence[str], limit: int = 6) -> list[str]:
    """Return the first distinct texts, and count the others.

    >>> some(["a", "b", "a", "c"], limit=2)
    ['a', 'b', 'and 1 more of this kind']
    """
    distinct = list(dict.fromkeys(texts))
    more = len(distinct) - limit
    return distinct if more <= 0 else [*distinct[:limit], f"and {more} more of this kind"]


def message_name(record: Record, names: Names) -> str:
    """Return the short name of a record's message with its round; a joint or lengthened name says it already."""
    name = names[record.view]
    says_round = ROUNDS in record.extra or name != _short(record)
    return name if says_round else f"{name}, round {record.round}"


def by_text(pairs: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return each text once, after the names that it applies to.

    >>> by_text([("No noise.", "a"), ("No noise.", "b"), ("Too long.", "c")])
    [('a; b', 'No noise.'), ('c', 'Too long.')]
    """
    return [("; ".join(some(names)), text) for text, names in values_by_key(pairs).items()]
