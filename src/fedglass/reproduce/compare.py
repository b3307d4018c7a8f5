"""Paper and measurement side by side."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fedglass.analysis.sparsity import pearson
from fedglass.audit.records import Record
from fedglass.reproduce.cases import Cell, known_methods
from fedglass.reproduce.populations import KINDS, PUBLISHED
from fedglass.reproduce.probes.invert import Invert
from fedglass.reproduce.probes.reconstruct import Reconstruct
from fedglass.reproduce.tables import Printed, Table

DEVIATION = "standard deviation"


@dataclass(frozen=True)
class Line:
    """One row and method: what the paper prints and what was measured."""

    setting: Sequence[str]
    method: str
    published: Mapping[str, str]
    """Measure -> as text; a dash where the paper has none."""
    measured: Mapping[str, str]
    done: int
    failed: int
    planned: int
    seconds: float | None
    peak_mib: float | None


def lines(of: Table, cells: Sequence[Cell], records: Mapping[str, Record]) -> list[Line]:
    """The table of all cells, in order."""
    titles = known_methods(of)
    return [_line(of, cell, titles[cell.method], records) for cell in cells]


def measures_of(record: Record) -> dict[str, float]:
    """All that was measured in one case; hours are those of 100 such cases, as the papers give them."""
    found = record.extra.get("measures")
    known = {k: float(v) for k, v in found.items() if isinstance(v, int | float)} if isinstance(found, dict) else {}
    known["hours"] = record.seconds * 100 / 3600
    if record.peak_mib is not None:
        known["gigabytes"] = record.peak_mib * 2**20 / 1e9
    return known


def spread_in_words(of: Table) -> str:
    """What stands after ± in the measured columns."""
    return f"± {DEVIATION if of.spread == DEVIATION else 'standard error'} over clients"


def remarks(of: Table, cells: Sequence[Cell], records: Mapping[str, Record]) -> list[str]:
    """What the reader must know beside the numbers."""
    return [*_iterations(cells), *_reduced(of, cells), *_averaged(cells), *_accuracies(cells, records), *of.notes]


def _accuracies(cells: Sequence[Cell], records: Mapping[str, Record]) -> list[str]:
    """How far the networks were trained, without which later rounds can not be compared."""
    found: dict[int, float] = {}
    for cell in cells:
        for case in cell.cases:
            value = records[case.key].utility.get("accuracy") if case.key in records else None
            if value is not None and cell.experiment.setup.warm_up is not None:
                found[cell.experiment.setup.warm_up.rounds] = value
    if not found:
        return []
    told = ", ".join(f"{value:.0%} after {rounds}" for rounds, value in sorted(found.items()))
    stand_in = any(case.population.stand_in for cell in cells for case in cell.cases)
    pace = " A stand-in is learnt at another pace than the paper's data: do not compare these rows by round."
    return [f"Accuracy of the trained network here, by rounds: {told}.{pace if stand_in else ''}"]


def _iterations(cells: Sequence[Cell]) -> list[str]:
    attacks = [cell for cell in cells if isinstance(cell.experiment.probe, Reconstruct)]
    asked = {cell.iterations for cell in attacks if cell.iterations is not None}
    return [f"Not as published: the last stage of every attack was given {n} iterations." for n in sorted(asked)]


def _reduced(of: Table, cells: Sequence[Cell]) -> list[str]:
    """How the runs of coarse-to-fine's tables differ from the paper's in size."""
    probes = [cell.experiment.probe for cell in cells if isinstance(cell.experiment.probe, Invert)]
    if not probes:
        return []
    counts = sorted({probe.iterations for probe in probes})
    sides = {KINDS[case.experiment.setup.data].shape[1] for cell in cells for case in cell.cases}
    trials = max(len({case.client for case in cell.cases}) for cell in cells)
    smaller = [f"{side} x {side} pixels in place of 224 x 224" for side in sorted(sides) if 32 < side < PUBLISHED]
    here = [
        f"{' or '.join(map(str, counts))} iterations in all, which coarse-to-fine halves between its stages",
        f"restarts: {max(probe.attack.restarts for probe in probes)}",
        f"trials: {trials}",
        *smaller,
    ]
    paper = f"30,000 iterations (coarse-to-fine 30,000 + 30,000), the best of 5 restarts, {of.clients} trials"
    return [f"Reduced here: {'; '.join(here)}. The paper: {paper}."]


def _averaged(cells: Sequence[Cell]) -> list[str]:
    """What the averages are made of, since a part whose network was not given is left out."""
    parts = list(dict.fromkeys(case.part for cell in cells for case in cell.cases if case.part))
    return [f"Averages here are over: {'; '.join(parts)}."] if parts else []


def correlation(cell: Cell, records: Mapping[str, Record]) -> float | None:
    """Pearson's coefficient of sparsity and PSNR over the settings of a cell, averaged over its clients."""
    points: dict[int, list[tuple[float, float]]] = {}
    for case in cell.cases:
        known = measures_of(records[case.key]) if case.key in records else {}
        if "sparsity" in known and "psnr" in known:
            points.setdefault(case.client, []).append((known["sparsity"], known["psnr"]))
    whole = [pairs for pairs in points.values() if len(pairs) > 2]  # two points always lie on a line
    found = [pearson([x for x, _ in pairs], [y for _, y in pairs]) for pairs in whole]
    values = [value for value in found if value is not None]
    return statistics.fmean(values) if values else None


def number(value: Printed | str | None, digits: int) -> str:
    """A published value as text.

    >>> number(Printed(30.3, 0.3), 1), number(None, 1)
    ('30.3 ± 0.3', '-')
    """
    if isinstance(value, str) or value is None:
        return value or "-"
    spread = "" if value.spread is None else f" ± {value.spread:.{digits}f}"
    return f"{value.mean:.{digits}f}{spread}"


def summarised(values: Sequence[float], of: Table) -> Printed | None:
    """Mean and spread over clients, the spread of the paper's kind; none for a single client.

    Clients are the units: the images of one client share its message and are not independent.
    """
    if not values:
        return None
    if len(values) == 1:
        return Printed(values[0])
    deviation = statistics.stdev(values)
    return Printed(statistics.fmean(values), deviation if of.spread == DEVIATION else deviation / len(values) ** 0.5)


def _line(of: Table, cell: Cell, title: str, records: Mapping[str, Record]) -> Line:
    found = [records[case.key] for case in cell.cases if case.key in records]
    done = [record for record in found if record.status == "done"]
    printed = cell.row.values.get(cell.method, {})
    known = [measures_of(record) for record in done]
    values = {name: [m[name] for m in known if name in m] for name in of.measures}
    if "pearson" in of.measures and (coefficient := correlation(cell, records)) is not None:
        values["pearson"] = [coefficient]
    peaks = [record.peak_mib for record in done if record.peak_mib is not None]
    return Line(
        [shown(cell.row.setting[field]) for field in of.columns],
        title,
        {name: number(printed.get(name), measure.digits) for name, measure in of.measures.items()},
        {name: number(summarised(values[name], of), measure.digits) for name, measure in of.measures.items()},
        len(done),
        len(found) - len(done),
        len(cell.cases),
        statistics.fmean(record.seconds for record in done) if done else None,
        max(peaks) if peaks else None,
    )


def shown(value: object) -> str:
    """A field of a setting as text.

    >>> shown(True), shown(0.0), shown("FEMNIST"), shown(["normal", "uniform"])
    ('yes', '-', 'FEMNIST', 'average')
    """
    if isinstance(value, list):
        return "average"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "-" if value == 0 else str(value)
