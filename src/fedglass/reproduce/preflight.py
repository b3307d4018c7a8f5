"""What is said and refused before anything runs."""

from __future__ import annotations

from collections.abc import Sequence

from fedglass.core.errors import ModelError, UsageError, unknown_name
from fedglass.reproduce.cases import Cell, lacking
from fedglass.reproduce.messages import network_of
from fedglass.reproduce.paper import paper_of
from fedglass.reproduce.request import Request
from fedglass.reproduce.tables import Row, Table


def network_names(of: Table) -> list[str]:
    """The trained networks that rows of the table need or can use.

    >>> from fedglass.reproduce.tables import table
    >>> network_names(table("c2f-figure9")), network_names(table("c2f-figure14"))
    (['25', '50', '75', 'max'], ['53'])
    """
    found = [paper_of(of).network(part.setting) for row in of.rows for part in row.parts()]
    return list(dict.fromkeys(trained.name for trained in found if trained is not None))


def refuse_options(of: Table, request: Request) -> None:
    """Restarts that the paper does not have, and names of trained networks that no row of the table takes."""
    if request.restarts != 1 and not paper_of(of).restarts:
        raise UsageError(f"--restarts {request.restarts}: the attacks of {of.name} are not restarted: leave it out.")
    sides = paper_of(of).sides
    if sides and request.side not in sides:
        raise UsageError(f"--size {request.side}: the pictures of {of.name} are {' or '.join(map(str, sides))} wide.")
    known = network_names(of)
    for name in request.weights:
        if not known:
            raise UsageError(f"No row of {of.name} takes a trained network: leave out --weights {name}=FILE.")
        if name not in known:
            raise unknown_name("network for --weights", name, known)


def check_networks(cells: Sequence[Cell], seed: int) -> None:
    """Refuse weights that do not fit the networks that they are given for."""
    setups = [case.subject.experiment.setup for cell in cells if cell.request.weights for case in cell.cases]
    for setup in {(s.network, s.data, s.init): s for s in setups}.values():
        try:
            network_of(setup, seed)
        except ModelError as error:
            raise ModelError(
                f"{error} It is needed for {setup.data}'s images: choose with --rows those that it was trained for."
            ) from error


def left_out(of: Table, rows: Sequence[Row], request: Request) -> list[str]:
    """Which rows, and which parts of averages, are not run because their trained network was not given.

    >>> from fedglass.reproduce.tables import table
    >>> left_out(table("c2f-figure9"), table("c2f-figure9").rows[:3], Request())
    ['Left out without --weights 25=FILE: row 2.', 'Left out without --weights 50=FILE: row 3.']
    """
    missing: dict[str, dict[int, str]] = {}
    for row in rows:
        names = [lacking(of, part.setting, request) for part in row.parts()]
        told = f"part of row {row.number}" if None in names else f"row {row.number}"
        for name in sorted({name for name in names if name is not None}):
            missing.setdefault(name, {})[row.number] = told
    return [f"Left out without --weights {name}=FILE: {', '.join(told.values())}." for name, told in missing.items()]
