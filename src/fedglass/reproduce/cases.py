"""A re-creation as a list of cases: one experiment on one client, each with a name of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fedglass.audit.digest import digest, spelled
from fedglass.core.errors import UsageError, unknown_name
from fedglass.recipes.catalogue import RECIPES
from fedglass.reproduce import dlfa, sme
from fedglass.reproduce.experiment import Experiment, Setup
from fedglass.reproduce.populations import Population
from fedglass.reproduce.request import Request
from fedglass.reproduce.tables import Row, Table

EXPERIMENTS = {**dlfa.DLFA, **sme.SME}


@dataclass(frozen=True)
class Case:
    """One experiment on one client. Equal cases have equal keys, whichever table asks for them."""

    key: str
    experiment: Experiment
    population: Population
    client: int
    seed: int
    title: str
    place: Mapping[str, object] = field(hash=False, compare=False)
    """Table, row and method that asked for it first."""


@dataclass(frozen=True, eq=False)
class Cell:
    """A row and a method of a table, with its cases."""

    row: Row
    method: str
    experiment: Experiment
    cases: Sequence[Case]
    iterations: int | None = None
    """Asked for in place of the published number."""


def known_methods(of: Table) -> dict[str, str]:
    """The table's methods, and those of this package that can be compared with them, by name.

    >>> from fedglass.reproduce.tables import table
    >>> list(known_methods(table("sme-table2")))[:3]
    ['dlfa', 'ig', 'sme']
    """
    modules = {"prior": dlfa, "sme": sme}
    own = next((module for method, module in modules.items() if method in of.methods), None)
    extra = {} if own is None else {m: t for m, t in own.EXTRA.items() if own.RECIPES[m] in RECIPES}
    return {**of.methods, **extra}


def choose_methods(of: Table, wanted: Sequence[str]) -> list[str]:
    """The methods of those names, or all that are published."""
    known = known_methods(of)
    for name in wanted:
        if name not in known:
            raise unknown_name("method", name, known)
    return [method for method in known if method in (wanted or of.methods)]


def cells(
    of: Table,
    rows: Sequence[Row],
    methods: Sequence[str],
    clients: int,
    populations: Mapping[str, Population],
    request: Request,
    seed: int,
) -> list[Cell]:
    """Every row with every method, on the clients 0, 1, 2 ..."""
    if clients < 1:
        raise UsageError(f"clients must be at least 1, got {clients}.")
    found = []
    for row in rows:
        for method in methods:
            experiment = EXPERIMENTS[of.name](row, method, request)
            population = populations[experiment.setup.data]
            cases = [_case(of, row, method, experiment, population, client, seed) for client in range(clients)]
            found.append(Cell(row, method, experiment, cases, request.iterations))
    return found


def data_kinds(of: Table, rows: Sequence[Row], methods: Sequence[str]) -> list[str]:
    """The kinds of data that these rows need."""
    setups = (EXPERIMENTS[of.name](row, method, Request()).setup for row in rows for method in methods)
    return list(dict.fromkeys(setup.data for setup in setups))


def warm_up_key(setup: Setup, population: Population, seed: int) -> str:
    """The name of a trained network."""
    facts = (setup.data, setup.network, setup.init, setup.gradient, setup.warm_up)
    return digest(*map(spelled, facts), population.identity, str(seed))[:32]


def _case(
    of: Table, row: Row, method: str, experiment: Experiment, population: Population, client: int, seed: int
) -> Case:
    key = digest(spelled(experiment), population.identity, str(client), str(seed))[:32]
    title = f"{of.name} row {row.number}, {known_methods(of)[method]}, client {client}"
    return Case(
        key, experiment, population, client, seed, title, {"table": of.name, "row": row.number, "method": method}
    )
