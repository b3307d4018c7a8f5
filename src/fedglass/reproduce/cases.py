"""A re-creation as a list of cases: one experiment on one client, each with a name of its own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from fedglass.core.errors import UsageError, unknown_name
from fedglass.core.identity import digest, identity_text
from fedglass.core.registry import built_in
from fedglass.reproduce import c2f, dlfa, sme
from fedglass.reproduce.experiment import Experiment, Setup
from fedglass.reproduce.populations import Population
from fedglass.reproduce.request import Request
from fedglass.reproduce.tables import Row, Table

EXPERIMENTS = {**dlfa.DLFA, **sme.SME, **c2f.C2F}


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
    part: str = field(default="", hash=False, compare=False)
    """Which of the settings that the row averages over."""


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
    modules = {"prior": dlfa, "sme": sme, "ours": c2f, "invg": c2f}
    own = next((module for method, module in modules.items() if method in of.methods), None)
    known = {} if own is None else {m: t for m, t in own.EXTRA.items() if own.RECIPES[m] in built_in("attacks")}
    extra = {method: title for method, title in known.items() if method not in of.methods}
    return {**of.methods, **extra}


def choose_methods(of: Table, wanted: Sequence[str]) -> list[str]:
    """The methods of those names, or all that are published and those that the table has beside them."""
    known = known_methods(of)
    for name in wanted:
        if name not in known:
            raise unknown_name("method", name, known)
    return [method for method in known if method in (wanted or (*of.methods, *of.also))]


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
            experiments = _experiments(of, row, method, request)
            _check_data(experiments.values(), clients, populations)
            cases = [
                _case(of, row, method, experiment, populations[experiment.setup.data], client, seed, part)
                for part, experiment in experiments.items()
                for client in range(clients)
            ]
            if cases:
                found.append(Cell(row, method, next(iter(experiments.values())), cases, request.iterations))
    return found


def _check_data(experiments: Iterable[Experiment], clients: int, populations: Mapping[str, Population]) -> None:
    """Refuse before anything runs what the clients' data do not suffice for."""
    for setup in (experiment.setup for experiment in experiments):
        population = populations[setup.data]
        population.check(clients * setup.clients, setup.examples, setup.clients)
        if setup.warm_up is not None:
            population.check(1, setup.warm_up.examples)


def _experiments(of: Table, row: Row, method: str, request: Request) -> dict[str, Experiment]:
    """One for each part of the row whose trained network was given, or is not needed; by the part in words."""
    averaged = [field for field, value in row.setting.items() if isinstance(value, list)]
    parts = [part for part in row.parts() if c2f.available(part.setting, request)]
    return {
        ", ".join(f"{of.columns[field]} {part.setting[field]}" for field in averaged): EXPERIMENTS[of.name](
            part, method, request
        )
        for part in parts
    }


def data_kinds(of: Table, rows: Sequence[Row], methods: Sequence[str], request: Request | None = None) -> list[str]:
    """The kinds of data that these rows need; an error where none of them can be run."""
    asked = request or Request()
    made = [e.setup.data for row in rows for method in methods for e in _experiments(of, row, method, asked).values()]
    if not made:
        names = [c2f.needed(part.setting) for row in rows for part in row.parts()]
        files = " ".join(f"--weights {name}=FILE" for name in dict.fromkeys(names))
        raise UsageError(f"These rows of {of.name} need trained networks: give them as {files}.")
    return list(dict.fromkeys(made))


def network_names(of: Table) -> list[str]:
    """The trained networks that rows of the table need or can use.

    >>> from fedglass.reproduce.tables import table
    >>> network_names(table("c2f-figure9")), network_names(table("c2f-figure14"))
    (['25', '50', '75', 'max'], ['53'])
    """
    settings = [part.setting for row in of.rows for part in row.parts()]
    names = [c2f.needed(setting) or setting.get("trained") for setting in settings]
    return list(dict.fromkeys(name for name in names if name is not None))


def warm_up_key(setup: Setup, population: Population, seed: int) -> str:
    """The name of a trained network."""
    facts = (setup.data, setup.network, setup.init, setup.gradient, setup.warm_up)
    return digest(identity_text(facts, "The trained network"), population.identity, str(seed))[:32]


def _case(
    of: Table, row: Row, method: str, experiment: Experiment, population: Population, client: int, seed: int, part: str
) -> Case:
    key = digest(identity_text(experiment, "The experiment"), population.identity, str(client), str(seed))[:32]
    title = f"{of.name} row {row.number}, {known_methods(of)[method]}, client {client}{part and f', {part}'}"
    place = {"table": of.name, "row": row.number, "method": method}
    return Case(key, experiment, population, client, seed, title, place, part)
