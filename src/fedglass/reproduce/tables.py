"""The published tables and figures as data, row by row, and the user's request for a re-creation.

Nothing here computes anything, and nothing here imports torch: listing the tables must be quick.
"""

from __future__ import annotations

import functools
import itertools
import json
import re
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from typing import Any

from fedglass.core.errors import UsageError, unknown_name
from fedglass.core.metric_scale import Scale

PUBLISHED, REDUCED = 224, 96
"""Sides of photographs: of the papers, and small enough for a CPU."""
CURIOUS_SIDES = (32, 64, 128)
"""Sides of the curious client's images; the paper has the last."""


@dataclass(frozen=True)
class Request:
    """Changes to the published procedure; None keeps that of the paper's release."""

    iterations: int | None = None
    restarts: int = 1
    """Restarts of each attack, if the paper restarts."""
    side: int = REDUCED
    """Side of pictures that the papers have at 224 x 224 or 128 x 128."""
    weights: Mapping[str, str] = field(default_factory=dict)
    """Trained networks by name -> safetensors file."""
    images: int | None = None
    """Images of each client (curious client: 16; its other sizes scale with it)."""
    own_labels: bool = False
    """Whether stand-ins keep their labels."""
    rounds: int | None = None
    """Rounds of a federation, if the paper does not specify them."""


FIGURES = "figures"
Setting = Mapping[str, Any]


@dataclass(frozen=True)
class Printed:
    """A number as a paper prints it, with its spread if it prints one."""

    mean: float
    spread: float | None = None


@dataclass(frozen=True, eq=False)
class Row:
    """One row of a table: its setting, and the numbers of each method."""

    number: int
    """Counted from 1, as in the paper."""
    setting: Setting
    values: Mapping[str, Mapping[str, Printed | str | None]]
    """Method -> measure -> the printed number; None if the paper has none."""

    def parts(self) -> list[Row]:
        """Return the row itself, or one row for each setting that it is the average of, if fields are lists.

        >>> [part.setting for part in Row(1, {"init": ["normal", "uniform"], "batch": 1}, {}).parts()]
        [{'init': 'normal', 'batch': 1}, {'init': 'uniform', 'batch': 1}]
        """
        choices = [value if isinstance(value, list) else [value] for value in self.setting.values()]
        settings = (dict(zip(self.setting, chosen, strict=True)) for chosen in itertools.product(*choices))
        return [Row(self.number, setting, self.values) for setting in settings]


@dataclass(frozen=True, eq=False)
class Table:
    """A table of a paper."""

    name: str
    title: str
    source: str
    columns: Mapping[str, str]
    """Field of the setting -> its heading."""
    methods: Mapping[str, str]
    """Name on the command line -> name in the paper."""
    measures: Mapping[str, Scale]
    """Title and decimal places of each column of numbers."""
    rows: Sequence[Row]
    spread: str | None = None
    """Meaning of the number after ±: `standard error` or `standard deviation`."""
    clients: int = 100
    """Clients that the paper averages over; 0 if it does not say."""
    notes: Sequence[str] = ()
    default: Mapping[str, int] = field(default_factory=dict)
    """Clients and iterations that take about an hour on 2 cores, if the published numbers take more."""
    also: Sequence[str] = ()
    """Methods that are run in addition to the paper's if the user names none."""
    drawn_over: Mapping[str, Any] = field(default_factory=dict)
    """The axis of the charts: the field `x` of the setting, its `title`, whether `log`, the `places` of values that are
    not numbers, the fields that change `along` with it, and the fields of separate `panels`."""
    drawn_along: Mapping[str, str] = field(default_factory=dict)
    """Measures that were also taken during the training, and the title of that axis."""

    @property
    def deviation(self) -> bool:
        """Return whether the number after ± is the standard deviation, not the standard error."""
        return self.spread == "standard deviation"


@dataclass(frozen=True)
class Figure:
    """A figure that shows runs of a table."""

    name: str
    title: str
    table: str
    rows: tuple[int, ...] = ()
    methods: tuple[str, ...] = ()


def names() -> dict[str, str]:
    """Return every table and figure with its title, those of one paper together.

    >>> names()["dlfa-table2"]
    'Labels wrong of 50, counts recovered from the update'
    """
    files = (entry.name.removesuffix(".json") for entry in _folder().iterdir() if "-" in entry.name)
    titles = {name: str(content(name)["title"]) for name in files}
    titles |= {name: f"{entry['title']} (runs of {entry['table']})" for name, entry in content(FIGURES).items()}
    return {name: titles[name] for name in sorted(titles, key=_order)}


@functools.cache
def table(name: str) -> Table:
    """Return the published table of that name.

    >>> table("dlfa-table1").rows[3].values["prior"]["psnr"]
    Printed(mean=21.5, spread=None)
    """
    if name not in names() or name in content(FIGURES):
        raise unknown_name("table or figure", name, names())
    values = content(name)
    measures = {key: Scale(**value) for key, value in values["measures"].items()}
    rows = [_row(i, row, values, tuple(measures)) for i, row in enumerate(values["rows"], 1)]
    fields = {key: value for key, value in values.items() if key != "fixed"}
    return Table(**{**fields, "measures": measures, "rows": rows})


def figure(name: str) -> Figure:
    """Return the figure of that name; a table is the figure of all of its rows.

    >>> figure("sme-figure5")
    Figure(name='sme-figure5', title='images at E = 20, N = 50', table='sme-table2', rows=(5, 11), methods=())
    """
    entry = content(FIGURES).get(name)
    if entry is None:
        return Figure(name, table(name).title, name)
    return Figure(name, entry["title"], entry["table"], tuple(entry.get("rows", ())), tuple(entry.get("methods", ())))


def paper_name(name: str) -> str:
    """Return the paper of a table, which its name begins with.

    >>> paper_name("sme-table2")
    'sme'
    """
    return name.partition("-")[0]


def mean_and_spread(values: Sequence[float], deviation: bool = False) -> Printed | None:
    """Return the mean and its standard error, or the standard deviation; a single value has no spread.

    >>> mean_and_spread([1.0, 3.0]), mean_and_spread([2.0]), mean_and_spread([])
    (Printed(mean=2.0, spread=1.0), Printed(mean=2.0, spread=None), None)
    """
    if len(values) < 2:
        return Printed(values[0]) if values else None
    spread = statistics.stdev(values)
    return Printed(statistics.fmean(values), spread if deviation else spread / len(values) ** 0.5)


def number(value: Printed | str | None, digits: int) -> str:
    """Return a published value as text.

    >>> number(Printed(30.3, 0.3), 1), number(None, 1)
    ('30.3 ± 0.3', '-')
    """
    if isinstance(value, str) or value is None:
        return value or "-"
    spread = "" if value.spread is None else f" ± {value.spread:.{digits}f}"
    return f"{value.mean:.{digits}f}{spread}"


def setting_text(value: object) -> str:
    """Return a field of a setting as text.

    >>> setting_text(True), setting_text(0.0), setting_text("FEMNIST"), setting_text(["normal", "uniform"])
    ('yes', '0', 'FEMNIST', 'average')
    """
    if isinstance(value, list):
        return "average"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "0" if value == 0 else str(value)


def choose_rows(of: Table, wanted: Sequence[str]) -> list[Row]:
    """Return the rows that any choice names: `3`, `2-5`, `1,4`, or `dataset=FEMNIST,epochs=10`; all without choices.

    >>> [row.number for row in choose_rows(table("dlfa-table1"), ["1,3-4", "dataset=CIFAR100,steps=500"])]
    [1, 3, 4, 10]
    """
    if not wanted:
        return list(of.rows)
    numbers = {number for choice in wanted for number in _chosen(of, choice)}
    return [row for row in of.rows if row.number in numbers]


def _chosen(of: Table, choice: str) -> Iterator[int]:
    if "=" in choice:
        yield from _by_setting(of, choice)
        return
    for part in choice.split(","):
        span = re.fullmatch(r"\s*(\d+)\s*(?:-\s*(\d+)\s*)?", part)
        first, last = (int(span[1]), int(span[2] or span[1])) if span else (0, 0)
        if not 1 <= first <= last <= len(of.rows):
            column = next(iter(of.columns))
            raise UsageError(
                f"rows must be numbers from 1 to {len(of.rows)}, such as 1,3-4, or fields of the setting, such as "
                f"{column}={of.rows[0].setting[column]}; got {choice!r}."
            )
        yield from range(first, last + 1)


def _by_setting(of: Table, choice: str) -> list[int]:
    wanted = dict(term.strip().partition("=")[::2] for term in choice.split(","))
    fields = of.rows[0].setting
    for name in wanted:
        if name not in fields:
            raise UsageError(f"rows: {unknown_name('field', name, fields)}")
    numbers = [r.number for r in of.rows if all(str(r.setting[k]).lower() == v.lower() for k, v in wanted.items())]
    if not numbers:
        raise UsageError(f"rows: no row of {of.name} has {choice}: see `fedglass reproduce list {of.name}`.")
    return numbers


def _row(number: int, row: Mapping[str, Any], of: Mapping[str, Any], measures: Sequence[str]) -> Row:
    setting = {**of.get("fixed", {}), **dict(zip(of["columns"], row["at"], strict=True))}
    values = {
        method: {measure: _printed(value) for measure, value in zip(measures, printed, strict=True)}
        for method, printed in row["values"].items()
    }
    return Row(number, setting, values)


def _printed(value: Any) -> Printed | str | None:
    if value is None or isinstance(value, str):
        return value
    return Printed(*map(float, value)) if isinstance(value, list) else Printed(float(value))


def _folder() -> Any:
    return resources.files("fedglass.reproduce") / "published"


@functools.cache
def content(name: str) -> dict[str, Any]:
    """Return the content of one JSON file among the published values."""
    values = json.loads((_folder() / f"{name}.json").read_text(encoding="utf-8"))
    assert isinstance(values, dict)
    return values


def _order(name: str) -> tuple[str, str, int]:
    """Return a sort key: tables, figures, then other names, and 2 before 10."""
    paper, kind, number = re.fullmatch(r"(\w+)-([a-z]+)(\d*)", name).groups()  # type: ignore[union-attr] # our names
    return paper, {"table": "a", "figure": "b"}.get(kind, kind), int(number or 0)
