"""What every fedglass page is made of: the template environment and the values its macros take."""

from __future__ import annotations

import base64
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
from PIL import Image

from fedglass import __version__
from fedglass.core.errors import UsageError
from fedglass.core.files import RefusedFile, read_file, write_atomic
from fedglass.verdict.records import Record
from fedglass.verdict.summary import Case
from fedglass.verdict.texts import percent

# Pictures as data: URIs, read from inside the audit directory alone and within a budget.


LARGEST = 8 * 2**20
"""Bytes of one picture; a larger one is not a reconstruction of anything an attack can handle."""
BUDGET = 32 * 2**20
"""Bytes of pictures in one page, so that a browser can still open it."""


@dataclass(frozen=True)
class Inlined:
    """A picture inside the page, or the reason why it is not there."""

    uri: str | None
    alt: str
    missing: str = ""
    width: int = 0
    height: int = 0


@dataclass
class Album:
    """Reads the pictures of one audit directory for one page."""

    root: Path
    budget: int = BUDGET
    _seen: dict[str, tuple[bytes, int, int] | str] = field(default_factory=dict)

    def inline(self, path: str, alt: str) -> Inlined:
        """The picture at a path relative to the root. Whatever is wrong is said in its place."""
        found = self._load(path)
        if isinstance(found, str):
            return Inlined(None, alt, missing=found)
        data, width, height = found
        if len(data) > self.budget:
            return Inlined(None, alt, missing=f"left out to keep the page small: {path}")
        self.budget -= len(data)
        return Inlined(f"data:image/png;base64,{base64.b64encode(data).decode()}", alt, "", width, height)

    @property
    def holes(self) -> list[str]:
        """What was asked for so far and can not be shown, each with the reason: `missing: pictures/a_0.png`."""
        return [found for found in self._seen.values() if isinstance(found, str)]

    def content(self, path: str) -> bytes | None:
        """The bytes of a picture, by which two originals are known to be the same."""
        found = self._load(path)
        return None if isinstance(found, str) else found[0]

    def _load(self, path: str) -> tuple[bytes, int, int] | str:
        if path not in self._seen:
            self._seen[path] = _read(self.root, path)
        return self._seen[path]


def _read(root: Path, path: str) -> tuple[bytes, int, int] | str:
    try:
        data = read_file(root / path, LARGEST, within=root)
    except FileNotFoundError:
        return f"missing: {path}"
    except RefusedFile as error:
        return f"refused, {error.strerror}: {path}"
    except (OSError, ValueError):
        return f"unreadable: {path}"
    size = _png_size(data)
    return f"not a picture: {path}" if size is None else (data, *size)


def _png_size(data: bytes) -> tuple[int, int] | None:
    """Width and height of an undamaged PNG, None of anything else."""
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


# Short names of views, for tables and charts in which a sentence would not fit.


Names = Mapping[str, str]
"""The view in words -> its short name."""


def short_names(records: Sequence[Record]) -> dict[str, str]:
    """A name for every view of the records, no two of them alike; older records have the words alone."""
    found = {record.view: record for record in records}
    short = {view: _short(record) for view, record in found.items()}
    dated = _told_apart(short, {view: f"{name}, round {found[view].round}" for view, name in short.items()})
    return _told_apart(dated, {view: view for view in found})


def _told_apart(names: Names, longer: Names) -> dict[str, str]:
    """Names, longer where two views would have the same."""
    counts = Counter(names.values())
    return {view: name if counts[name] == 1 else longer[view] for view, name in names.items()}


def _short(record: Record) -> str:
    if not record.view_name:
        return record.view
    together = record.standpoint == "aggregate" and record.contributors
    return f"{record.view_name} of {len(record.contributors)}" if together else record.view_name


def some(texts: Sequence[str], limit: int = 6) -> list[str]:
    """Distinct texts in order, the rest counted.

    >>> some(["a", "b", "a", "c"], limit=2)
    ['a', 'b', 'and 1 more of this kind']
    """
    distinct = list(dict.fromkeys(texts))
    left = len(distinct) - limit
    return distinct if left <= 0 else [*distinct[:limit], f"and {left} more of this kind"]


def message_name(record: Record | Case, names: Names) -> str:
    """Return the short name of a record's message, with the round unless the name has it."""
    view = names[record.view]
    return view if "round" in view else f"{view}, round {record.round}"


def by_text(pairs: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return each text once, after the names that it holds for.

    >>> by_text([("No noise.", "a"), ("No noise.", "b"), ("Too long.", "c")])
    [('a; b', 'No noise.'), ('c', 'Too long.')]
    """
    found: dict[str, list[str]] = {}
    for text, name in pairs:
        found.setdefault(text, []).append(name)
    return [("; ".join(some(names)), text) for text, names in found.items()]
