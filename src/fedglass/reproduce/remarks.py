"""What the reader must know beside the numbers: what was reduced, averaged and trained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fedglass.ledger.records import Record
from fedglass.reproduce.cases import Cell
from fedglass.reproduce.compare import is_done
from fedglass.reproduce.cost import iterations_of_stages
from fedglass.reproduce.paper import paper_of
from fedglass.reproduce.tables import Table


def remarks(of: Table, cells: Sequence[Cell], records: Mapping[str, Record]) -> list[str]:
    """What the reader must know beside the numbers; without any records, of what is planned."""
    own = paper_of(of).remarks
    told = _iterations(cells) if own is None else own(of, cells)
    return [*told, *_averaged(cells, records), *_accuracies(cells, records), *of.notes]


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
    stand_in = any(case.subject.population.stand_in for cell in cells for case in cell.cases)
    pace = " A stand-in is learnt at another pace than the paper's data: do not compare these rows by round."
    return [f"Accuracy of the trained network here, by rounds: {told}.{pace if stand_in else ''}"]


def _iterations(cells: Sequence[Cell]) -> list[str]:
    """What was made of --iterations: a recipe gives them to its main stage, others keep their own."""
    asked: dict[int, dict[str, str]] = {}
    for cell in cells:
        stages, iterations = iterations_of_stages(cell.experiment.probe.attack), cell.request.iterations
        if iterations is not None and stages:
            told = asked.setdefault(iterations, {})
            if len(stages) > 1:
                told[cell.title] = " + ".join(map(str, stages))
    return [
        f"Not as published: the option `iterations` of every attack was {number}."
        + "".join(f" Stages of {name}: {each} iterations, of which the option sets one." for name, each in m.items())
        for number, m in sorted(asked.items())
    ]


def _averaged(cells: Sequence[Cell], records: Mapping[str, Record]) -> list[str]:
    """What the averages are made of: not of parts whose network was not given, or whose runs failed."""
    found: dict[tuple[str, ...], list[str]] = {}
    for cell in cells:
        cases = [case for case in cell.cases if not records or is_done(case, records)]
        parts = tuple(dict.fromkeys(case.subject.part for case in cases if case.subject.part))
        if parts:
            found.setdefault(parts, []).append(f"row {cell.row.number}, {cell.title}")
    where = (f" ({'; '.join(told)})" if len(found) > 1 else "" for told in found.values())
    return [f"Averages here are over: {'; '.join(parts)}{place}." for parts, place in zip(found, where, strict=True)]
