"""What is said and refused before anything runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fedglass.core.errors import ModelError, UsageError, unknown_name
from fedglass.models.init import FromFile
from fedglass.models.transfer import Transfer
from fedglass.reproduce import c2f
from fedglass.reproduce.cases import Cell, network_names
from fedglass.reproduce.messages import network_of
from fedglass.reproduce.request import Request
from fedglass.reproduce.tables import Row, Table


def refuse_weights(of: Table, given: Iterable[str]) -> None:
    """Names of trained networks that no row of the table takes."""
    known = network_names(of)
    for name in given:
        if not known:
            raise UsageError(f"No row of {of.name} takes a trained network: leave out --weights {name}=FILE.")
        if name not in known:
            raise unknown_name("network for --weights", name, known)


def check_networks(cells: Sequence[Cell], seed: int) -> None:
    """Refuse weights that do not fit the networks that they are given for."""
    setups = [case.experiment.setup for cell in cells for case in cell.cases]
    given = {(s.network, s.data, s.init): s for s in setups if isinstance(s.init, Transfer | FromFile)}
    for setup in given.values():
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
        names = {name for part in row.parts() if (name := c2f.needed(part.setting)) is not None}
        some = any(c2f.available(part.setting, request) for part in row.parts())
        for name in sorted(names - set(request.weights)):
            missing.setdefault(name, {})[row.number] = f"part of row {row.number}" if some else f"row {row.number}"
    return [f"Left out without --weights {name}=FILE: {', '.join(told.values())}." for name, told in missing.items()]
