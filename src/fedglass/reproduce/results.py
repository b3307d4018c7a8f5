"""Measured runs of published rows as JSON lines, one file for each paper, and what they say next to the paper.

Nothing here imports torch: the page of all tables is written from these lines and the published values alone.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError

from fedglass.core.errors import AuditError, UsageError
from fedglass.core.files import RefusedFile, locked, make_folder, read_file
from fedglass.core.text import values_by_key
from fedglass.reproduce.tables import Printed, Row, Table, mean_and_spread, paper_name, table
from fedglass.verdict.records import grouped

MOST_BYTES = 256 * 2**20
CLOSE = 0.05
"""A measured mean meets the paper within this share of the printed value."""
FEW = 5
"""From so many runs on, twice the standard error also counts as agreement."""
PAGE = "page"
"""Provenance of figures that were taken from an older page; they do not count as measured."""
BETTER = {
    **dict.fromkeys(("psnr", "ssim", "recovered", "back", "gain", "gain_bicubic"), 1),
    **dict.fromkeys(("lpips", "rmse", "label_errors", "lsim", "hours", "gigabytes"), -1),
}
"""The sign of an improvement, by measure; a measure that is not here can only be met or missed."""


Place = tuple[str, int, str, int | None, str, int, str, str, str]
"""Table, row, method, client, part, seed, options as JSON, data and version: what one line of the results is about."""


class Result(BaseModel):
    """One measured run of a row and a method of a published table."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    table: str
    row: int
    method: str
    client: int | None
    """The number of the run; None in a line that averages over runs."""
    part: str = ""
    """One of the settings that the row averages over."""
    seed: int
    runs: int = Field(default=1, ge=1)
    metrics: Mapping[str, float]
    errors: Mapping[str, float] = Field(default_factory=dict)
    """Standard errors of a line that averages over runs."""
    iterations: int | None = None
    iterations_published: int | None = None
    """The iterations of the published procedure; None if the paper does not say."""
    options: Mapping[str, JsonValue] = Field(default_factory=dict)
    """Differences from the published procedure, as options of the command."""
    data: str
    stand_in: bool
    version: str
    command: str
    date: str | None
    seconds: float | None = None
    key: str = ""
    """The key of the case; the same key is the same run."""
    provenance: Literal["run", "page"] = "run"

    @property
    def place(self) -> Place:
        """Return what the line is about. It outlives the key of a case, which changes with the classes of its parts."""
        options = json.dumps(dict(self.options), sort_keys=True)
        return self.table, self.row, self.method, self.client, self.part, self.seed, options, self.data, self.version


def places_of(lines: Iterable[Result]) -> set[Place]:
    """Return what the measured lines are about."""
    return {line.place for line in lines if line.provenance != PAGE}


def read_results(folder: Path, report: Callable[[str], None] | None = None) -> list[Result]:
    """Return all results of a folder, the last one about each run.

    A line that is not a result is skipped; `report` is called with a sentence about it.
    """
    lines = list[Result]()
    for path in sorted(folder.glob("*.jsonl")) if folder.is_dir() else []:
        try:
            text = read_file(path, MOST_BYTES).decode("utf-8", "replace")
        except (OSError, RefusedFile) as error:
            raise UsageError(f"Cannot read the results {path}: {error}. Fix the file or its permissions.") from error
        for number, line in enumerate(text.splitlines(), 1):
            try:
                result = Result.model_validate_json(line)
                rows = table(result.table).rows
                if not 1 <= result.row <= len(rows):
                    raise UsageError(f"{result.table} has rows 1 to {len(rows)}, got row {result.row}.")
                lines.append(result)
            except (ValidationError, UsageError) as error:
                reason = str(error)
                if isinstance(error, ValidationError):
                    first = error.errors(include_url=False, include_input=False)[0]
                    field = ".".join(map(str, first["loc"])) or "line"
                    reason = f"{field}: {first['msg']}. Restore the line, or delete it."
                if report is not None:
                    report(f"{path} line {number} is not a result and was skipped: {reason}")
    distinct = {id(line) if line.provenance == PAGE else line.place: line for line in lines}
    return list(distinct.values())


def append_result(folder: Path, result: Result) -> None:
    """Append one result to the file of its paper; it is on disk when this returns."""
    path = folder / f"{paper_name(result.table)}.jsonl"
    line = (result.model_dump_json() + "\n").encode()
    try:
        make_folder(folder)
        with locked(path) as fd, open(fd, "r+b", closefd=False) as file:
            end = file.seek(0, 2)
            if end and (file.seek(end - 1), file.read(1))[1] != b"\n":
                file.write(b"\n")
            file.write(line)
    except OSError as error:
        raise AuditError(f"Cannot write {path}: {error.strerror}; make room or fix permissions, then run again.") from (
            error
        )


@dataclass(frozen=True)
class MeasuredLine:
    """The runs of one row and method with the same options, next to what the paper prints."""

    row: Row
    method: str
    results: Sequence[Result]

    @property
    def is_measured(self) -> bool:
        """Return whether these are runs, and not figures of an older page."""
        return all(result.provenance != PAGE for result in self.results)

    @property
    def runs(self) -> int:
        if not self.is_measured:
            return max(result.runs for result in self.results)
        return len({(result.client, result.seed) for result in self.results})

    def value(self, measure: str, deviation: bool = False) -> Printed | None:
        """Return mean and spread over clients; the parts that a row averages over are averaged first."""
        if not self.is_measured:
            from_page = [result for result in self.results if measure in result.metrics]
            last = from_page[-1] if from_page else None
            return None if last is None else Printed(last.metrics[measure], last.errors.get(measure))
        by_client = values_by_key(
            ((result.client, result.seed), result.metrics[measure])
            for result in self.results
            if measure in result.metrics
        )
        return mean_and_spread([statistics.fmean(values) for values in by_client.values()], deviation)

    def guess(self, measure: str) -> Printed | None:
        """Return what the best blind guess reaches, if it was measured."""
        return self.value("guess" if measure == "rmse" else f"guess_{measure}")

    def verdict(self, of: Table) -> str:
        """Return met, beaten or missed; not run for a figure of an older page, and an empty text without a print.

        A line is missed if any of its measures is, and beaten if none is missed and one is better than printed.
        """
        if not self.is_measured:
            return "not run"
        outcomes = {
            outcome(name, printed, value, measure.digits, self.runs)
            for name, measure in of.measures.items()
            if isinstance(printed := self.row.values.get(self.method, {}).get(name), Printed)
            and (value := self.value(name)) is not None
        } | {
            "met" if same.mean == 1 else "missed"
            for name in of.measures
            if (same := self.value(f"same_{name}")) is not None
        }
        return next((word for word in ("missed", "beaten", "met") if word in outcomes), "")

    def size(self) -> str:
        """Say how a run differs from the paper's in size and options."""
        first = self.results[0]
        reduced = first.iterations is not None and first.iterations_published not in (None, first.iterations)
        texts = [f"{first.iterations:,} of {first.iterations_published:,} iterations"] if reduced else []
        given = {name: value for name, value in first.options.items() if name != "iterations" or not reduced}
        return "; ".join([*texts, *(str(v) if n == "note" else f"{n} {v}" for n, v in given.items())])


def outcome(measure: str, printed: Printed, value: Printed, digits: int, runs: int) -> str:
    """Return whether a measured mean is met, beaten or missed.

    >>> [outcome("psnr", Printed(20.0), Printed(mean, 0.1), 1, 3) for mean in (20.9, 25.0, 18.0)]
    ['met', 'beaten', 'missed']
    """
    margin = max(CLOSE * abs(printed.mean), 10.0**-digits)
    if runs >= FEW and value.spread is not None:
        margin = max(margin, 2 * math.hypot(value.spread, printed.spread or 0.0))
    difference = value.mean - printed.mean
    if abs(difference) <= margin:
        return "met"
    return "beaten" if difference * BETTER.get(measure, 0) > 0 else "missed"


def lines_of(of: Table, results: Iterable[Result]) -> list[MeasuredLine]:
    """Group the results of a table by row, method and options; of each row the largest runs come first.

    The order depends on sizes alone: runs before figures of an older page, more iterations, more runs.
    """
    groups = grouped(
        (result for result in results if result.table == of.name),
        lambda r: (r.row, r.method, f"{sorted(r.options.items())} {r.data} {r.provenance}"),
    )
    methods = list(of.methods)
    lines = [MeasuredLine(of.rows[row - 1], method, group) for (row, method, _), group in groups.items()]
    return sorted(
        lines,
        key=lambda line: (
            line.row.number,
            methods.index(line.method) if line.method in methods else len(methods),
            line.method,
            not line.is_measured,
            -(line.results[0].iterations or 0),
            -line.runs,
        ),
    )


def printed_lines(of: Table) -> list[tuple[int, str]]:
    """Return row and method of every line in which the paper prints a number."""
    return [
        (row.number, method)
        for row in of.rows
        for method, values in row.values.items()
        if any(value is not None for value in values.values())
    ]


def tally(of: Table, results: Iterable[Result]) -> dict[str, int]:
    """Count the printed lines of a table by what came of them: met, beaten, missed, not run."""
    verdicts: dict[tuple[int, str], str] = {}
    for line in lines_of(of, results):
        verdicts.setdefault((line.row.number, line.method), line.verdict(of) or "not run")
    words = [verdicts.get(entry, "not run") for entry in printed_lines(of)]
    return {word: words.count(word) for word in ("met", "beaten", "missed", "not run")}
