"""What the reader must know beside the numbers: what was reduced, averaged and trained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fedglass.ledger.records import Record
from fedglass.reproduce.cases import Cell, known_methods
from fedglass.reproduce.compare import is_done
from fedglass.reproduce.populations import KINDS, PUBLISHED
from fedglass.reproduce.probes.invert import Invert
from fedglass.reproduce.probes.reconstruct import Reconstruct
from fedglass.reproduce.probes.try_trainings import TryTrainings
from fedglass.reproduce.tables import Table

MADE_FOR_LESS = (
    "Methods named `fast` are this package's coarse_to_fine, made for such budgets, at which the paper's own rates do "
    "not arrive."
)


def remarks(of: Table, cells: Sequence[Cell], records: Mapping[str, Record]) -> list[str]:
    """What the reader must know beside the numbers; without any records, of what is planned."""
    made = [*_iterations(of, cells), *_reduced(of, cells), *_averaged(of, cells, records)]
    return [*made, *_accuracies(cells, records), *of.notes]


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


def _iterations(of: Table, cells: Sequence[Cell]) -> list[str]:
    """What was made of --iterations: a recipe gives them to its main stage, others keep their own."""
    asked: dict[int, dict[str, str]] = {}
    for cell in cells:
        probe = cell.experiment.probe
        probe = probe.probe if isinstance(probe, TryTrainings) else probe
        if cell.iterations is not None and isinstance(probe, Reconstruct):
            stages = " + ".join(str(getattr(stage.solver, "iterations", 1)) for stage in probe.attack.stages)
            told = asked.setdefault(cell.iterations, {})
            if len(probe.attack.stages) > 1:
                told[known_methods(of)[cell.method]] = stages
    return [
        f"Not as published: the option `iterations` of every attack was {number}."
        + "".join(f" Stages of {name}: {each} iterations, of which the option sets one." for name, each in m.items())
        for number, m in sorted(asked.items())
    ]


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
    ours = any(cell.method.startswith("fast") for cell in cells)
    return [f"Reduced here: {'; '.join(here)}. The paper: {paper}.", *([MADE_FOR_LESS] if ours else [])]


def _averaged(of: Table, cells: Sequence[Cell], records: Mapping[str, Record]) -> list[str]:
    """What the averages are made of: not of parts whose network was not given, or whose runs failed."""
    found: dict[tuple[str, ...], list[str]] = {}
    for cell in cells:
        cases = [case for case in cell.cases if not records or is_done(case, records)]
        parts = tuple(dict.fromkeys(case.part for case in cases if case.part))
        if parts:
            told = found.setdefault(parts, [])
            told.append(f"row {cell.row.number}, {known_methods(of)[cell.method]}")
    where = (f" ({'; '.join(told)})" if len(found) > 1 else "" for told in found.values())
    return [f"Averages here are over: {'; '.join(parts)}{place}." for parts, place in zip(found, where, strict=True)]
