"""Paper and measurement side by side: the numbers of each row and method, and the remarks that they need."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedglass.core.text import values_by_key
from fedglass.reproduce.cases import Cell, TrialCase
from fedglass.reproduce.paper import paper_of
from fedglass.reproduce.tables import Printed, Table, mean_and_spread, number, setting_text
from fedglass.verdict.records import Record

NO_BETTER = "no better than guessing"
OTHER_PACE = " A stand-in is learnt at another pace than the paper's data: do not compare these rows by round."


@dataclass(frozen=True)
class ComparedCell:
    """One row and method: the numbers that the paper prints, and those that were measured."""

    setting: Sequence[str]
    method: str
    published: Mapping[str, str]
    """Text by measure; a dash where the paper has no number."""
    measured: Mapping[str, str]
    values_published: Mapping[str, Printed | str | None]
    """The numbers behind `published`."""
    values: Mapping[str, Printed | None]
    """The numbers behind `measured`."""
    done: int
    failed: int
    planned: int
    seconds: float | None
    peak_mib: float | None


def compare_cells(of: Table, cells: Sequence[Cell], records: Mapping[str, Record]) -> list[ComparedCell]:
    """Compare the cells of a table with the paper, in order."""
    return [compare_cell(of, cell, records) for cell in cells]


def compare_cell(of: Table, cell: Cell, records: Mapping[str, Record]) -> ComparedCell:
    """Compare a row and a method with the paper."""
    finished = [records[case.key] for case in cell.cases if case.key in records]
    done = [record for record in finished if record.status == "done"]
    printed = cell.row.values.get(cell.method, {})
    values = {name: values_by_client(cell, records, name) for name in of.measures}
    derived = {name: of_cell(cell, records) for name, of_cell in paper_of(of).derived.items() if name in of.measures}
    values |= {name: [value] for name, value in derived.items() if value is not None}
    clients = len({case.subject.client for case in cell.cases if is_done(case, records)})
    # Clients are the units: the images of one client share its message and are not independent.
    means = {name: mean_and_spread(values[name], of.deviation) for name in of.measures}
    measured = dict[str, str]()
    for name, measure in of.measures.items():
        # The weights of LPIPS may have been missing at first, so that not all clients have it.
        some_clients = name not in derived and 0 < len(values[name]) < clients
        coverage = f" ({len(values[name])} of {clients})" if some_clients else ""
        measured[name] = number(means[name], measure.digits) + coverage + _guess_remark(name, cell, records)
    peaks = [record.peak_mib for record in done if record.peak_mib is not None]
    return ComparedCell(
        [setting_text(cell.row.setting[field]) for field in of.columns],
        cell.title,
        {name: number(printed.get(name), measure.digits) for name, measure in of.measures.items()},
        measured,
        printed,
        means,
        len(done),
        len(finished) - len(done),
        len(cell.cases),
        statistics.fmean(record.seconds for record in done) if done else None,
        max(peaks) if peaks else None,
    )


def _guess_remark(measure: str, cell: Cell, records: Mapping[str, Record]) -> str:
    """Say that an attack is no better than the best blind guess, if both were measured.

    Pictures in another contrast can be far off by RMSE and be recognised all the same, so that the share of images
    that came back is added.
    """
    reached, blind, back = (values_by_client(cell, records, name) for name in (measure, "guess", "back"))
    if measure != "rmse" or not reached or not blind or statistics.fmean(reached) < statistics.fmean(blind):
        return ""
    share = statistics.fmean(back) if back else 0.0
    return f" ({NO_BETTER}{f' by RMSE, but {share:.0f} % came back' if share else ''})"


def measures_of(record: Record) -> dict[str, float]:
    """Return all measures of one case; hours are those of 100 such cases, as the papers give them."""
    stored = record.extra.get("measures")
    measures = (
        {k: float(v) for k, v in stored.items() if isinstance(v, int | float)} if isinstance(stored, dict) else {}
    )
    measures["hours"] = record.seconds * 100 / 3600
    if record.peak_mib is not None:
        measures["gigabytes"] = record.peak_mib * 2**20 / 1e9
    return measures


def strips_of(record: Record) -> dict[str, Any]:
    """Return the paths of a case's pictures: of the originals, of the reconstruction, and of each epoch."""
    strips: Any = record.extra.get("strips", {})
    return dict(strips)


def is_done(case: TrialCase, records: Mapping[str, Record]) -> bool:
    """Return whether the case was run and did not fail."""
    return case.key in records and records[case.key].status == "done"


def values_by_client(cell: Cell, records: Mapping[str, Record], measure: str) -> list[float]:
    """Return one value for each client: its mean over the settings that the row averages over.

    The settings share the client's images, so that they are not independent.
    """
    values = values_by_key(
        (case.subject.client, measures[measure])
        for case in cell.cases
        if is_done(case, records) and measure in (measures := measures_of(records[case.key]))
    )
    return [statistics.fmean(of_client) for of_client in values.values()]


def describe_spread(of: Table, cells: Sequence[Cell]) -> str:
    """Say what stands after ± in the measured columns, or that nothing does."""
    if all(len({case.subject.client for case in cell.cases}) == 1 for cell in cells):
        return "of a single client, which has no spread"
    return f"± {'standard deviation' if of.deviation else 'standard error'} over clients"


def describe_data(cells: Sequence[Cell]) -> dict[str, bool]:
    """Describe the clients' images, each kind once, and return whether they stand in for others."""
    populations = dict.fromkeys(case.subject.population for cell in cells for case in cell.cases)
    return {population.describe(): population.stand_in for population in populations}


def remarks(of: Table, cells: Sequence[Cell], records: Mapping[str, Record]) -> list[str]:
    """Return what a reader must know in addition to the numbers; without records, about the plan."""
    of_paper = paper_of(of).remarks
    sizes = _iteration_remarks(cells) if of_paper is None else of_paper(of, cells)
    return [*sizes, *_average_remarks(cells, records), *_accuracy_remarks(cells, records), *of.notes]


def _accuracy_remarks(cells: Sequence[Cell], records: Mapping[str, Record]) -> list[str]:
    """Say how far the networks were trained: later rounds cannot be compared without it."""
    accuracies: dict[int, float] = {}
    for cell in cells:
        for case in cell.cases:
            value = records[case.key].utility.get("accuracy") if case.key in records else None
            if value is not None and cell.experiment.setup.warm_up is not None:
                accuracies[cell.experiment.setup.warm_up.rounds] = value
    if not accuracies:
        return []
    by_rounds = ", ".join(f"{value:.0%} after {rounds}" for rounds, value in sorted(accuracies.items()))
    stand_in = any(case.subject.population.stand_in for cell in cells for case in cell.cases)
    return [f"Accuracy of the trained network here, by rounds: {by_rounds}.{OTHER_PACE if stand_in else ''}"]


def _iteration_remarks(cells: Sequence[Cell]) -> list[str]:
    """Say what --iterations sets: a recipe passes them to its main stage, and other stages keep theirs."""
    stages_by_option: dict[int, dict[str, str]] = {}
    for cell in cells:
        stages, option = cell.experiment.probe.stages(), cell.request.iterations
        if option is not None and stages:
            by_title = stages_by_option.setdefault(option, {})
            if len(stages) > 1:
                by_title[cell.title] = " + ".join(map(str, stages))
    return [
        f"Not as published: the option `iterations` of every attack was {option}."
        + "".join(f" Stages of {title}: {stages} iterations; the option sets one." for title, stages in titles.items())
        for option, titles in sorted(stages_by_option.items())
    ]


def _average_remarks(cells: Sequence[Cell], records: Mapping[str, Record]) -> list[str]:
    """Say what the averages are made of: parts without a network, and failed runs, are not in them."""
    cells_by_parts: dict[tuple[str, ...], list[str]] = {}
    for cell in cells:
        cases = [case for case in cell.cases if not records or is_done(case, records)]
        parts = tuple(dict.fromkeys(case.subject.part for case in cases if case.subject.part))
        if parts:
            cells_by_parts.setdefault(parts, []).append(f"row {cell.row.number}, {cell.title}")
    scopes = [f" ({'; '.join(titles)})" if len(cells_by_parts) > 1 else "" for titles in cells_by_parts.values()]
    averages = zip(cells_by_parts, scopes, strict=True)
    return [f"Averages here are over: {'; '.join(parts)}{scope}." for parts, scope in averages]
