"""The cases of a re-creation: one experiment on one client each, checked before anything runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fedglass.audit.target import Case
from fedglass.core.errors import ModelError, UsageError, unknown_name
from fedglass.core.identity import digest, identity_text
from fedglass.core.rng import derive
from fedglass.reproduce.image_sources import Population
from fedglass.reproduce.messages import network_of
from fedglass.reproduce.paper import Experiment, Setup, paper_of
from fedglass.reproduce.tables import Request, Row, Setting, Table


@dataclass(frozen=True)
class ClientTrial:
    """One experiment on one client."""

    experiment: Experiment
    population: Population
    client: int
    seed: int
    """The seed of network, data and training."""
    part: str = ""
    """One of the settings that the row averages over, as text."""


TrialCase = Case[ClientTrial]
"""Equal trials have equal keys, whatever table they belong to."""


@dataclass(frozen=True, eq=False)
class Cell:
    """A row and a method of a table, with its cases."""

    row: Row
    method: str
    title: str
    """Title of the method."""
    experiment: Experiment
    cases: Sequence[TrialCase]
    request: Request


def cases_of(cells: Sequence[Cell]) -> list[TrialCase]:
    """Return the cases of all cells, client by client, so that every cell soon has a number."""
    return sorted((case for cell in cells for case in cell.cases), key=lambda case: case.subject.client)


def method_titles(of: Table) -> dict[str, str]:
    """Return the titles of the table's methods, and of others that can be compared with them, by name.

    >>> from fedglass.reproduce.tables import table
    >>> list(method_titles(table("sme-table2")))[:3]
    ['dlfa', 'ig', 'sme']
    """
    extra_methods = paper_of(of).tables[of.name].extra_methods
    return {
        **of.methods,
        **{name: extra.title for name, extra in extra_methods.items() if extra.title and name not in of.methods},
    }


def choose_methods(of: Table, wanted: Sequence[str]) -> list[str]:
    """Return the methods of those names; without names all published ones and those that the table adds."""
    titles = method_titles(of)
    for name in wanted:
        if name not in titles:
            raise unknown_name("method", name, titles)
    return [method for method in titles if method in (wanted or (*of.methods, *of.also))]


def cells(
    of: Table,
    rows: Sequence[Row],
    methods: Sequence[str],
    clients: int,
    populations: Mapping[str, Population],
    request: Request,
    seed: int,
) -> list[Cell]:
    """Return every row with every method, on the clients 0, 1, 2 ..."""
    if clients < 1:
        raise UsageError(f"clients must be at least 1, got {clients}.")
    table_cells, titles = [], method_titles(of)
    for row in rows:
        for method in methods:
            experiments = _experiments(of, row, method, request)
            cases = []
            for part, experiment in experiments.items():
                setup, population = experiment.setup, populations[experiment.setup.data]
                setup.check(population, clients)
                if setup.warm_up is not None or setup.federation_run is not None:  # a network is trained on the labels
                    population = population.with_own_labels()
                trials = (ClientTrial(experiment, population, client, seed, part) for client in range(clients))
                cases += [_case(of, row, method, trial) for trial in trials]
            if cases:
                first = cases[0].subject.experiment
                table_cells.append(Cell(row, method, titles[method], first, cases, request))
    return table_cells


def _experiments(of: Table, row: Row, method: str, request: Request) -> dict[str, Experiment]:
    """Return one experiment for each part of the row that lacks no trained network, by the part as text."""
    averaged = [field for field, value in row.setting.items() if isinstance(value, list)]
    make_experiment = paper_of(of).tables[of.name].experiment
    parts = [part for part in row.parts() if missing_weights(of, part.setting, request, method) is None]
    return {
        ", ".join(f"{of.columns[field]} {part.setting[field]}" for field in averaged): make_experiment(
            part, method, request
        )
        for part in parts
    }


def missing_weights(of: Table, setting: Setting, request: Request, method: str = "") -> str | None:
    """Return the name of a trained network that the setting or the method needs and that was not given, or None."""
    paper = paper_of(of)
    names = [name for name in [paper.network(setting)] if name is not None and name not in paper.optional_networks]
    return next((name for name in [*names, *_weights_of(of, method)] if name not in request.weights), None)


def _weights_of(of: Table, *methods: str) -> list[str]:
    """Return the names of trained networks that the methods need."""
    extra = paper_of(of).tables[of.name].extra_methods
    return [extra[name].weights for name in methods if name in extra and extra[name].weights]


def data_kinds(of: Table, rows: Sequence[Row], methods: Sequence[str], request: Request | None = None) -> list[str]:
    """Return the kinds of data that these rows need; raise an error if none of the rows can be run."""
    options = request or Request()
    kinds = [
        e.setup.data for row in rows for method in methods for e in _experiments(of, row, method, options).values()
    ]
    if not kinds:
        names = [missing_weights(of, part.setting, options, m) for row in rows for part in row.parts() for m in methods]
        files = " ".join(f"--weights {name}=FILE" for name in dict.fromkeys(names))
        raise UsageError(f"These rows of {of.name} need trained networks: give them as {files}.")
    return list(dict.fromkeys(kinds))


def _describe_view(setup: Setup) -> str:
    if setup.federation_run is not None and not setup.sizes:
        return f"none: the model that {setup.clients} clients train is tested"
    if setup.sizes:
        return f"one of {setup.clients} clients sees the global models before and after the round, and its own examples"
    many = setup.clients > 1
    return f"the server sees the mean update of {setup.clients} clients" if many else "the server sees one update"


def _case(of: Table, row: Row, method: str, trial: ClientTrial) -> TrialCase:
    experiment, setup, population = trial.experiment, trial.experiment.setup, trial.population
    facts = identity_text(experiment, "The experiment"), population.identity, str(trial.client), str(trial.seed)
    warm_up_rounds = 0 if setup.warm_up is None else setup.warm_up.rounds
    title = f"{of.name} row {row.number}, {method_titles(of)[method]}, client {trial.client}"
    fields = {
        "attack": method,
        "attack_repr": repr(experiment.probe),
        "view": _describe_view(setup),
        "round": warm_up_rounds + 1 if setup.federation_run is None else setup.federation_run.rounds,
        "client": str(trial.client),
        "repeat": 0,
        "extra": {
            "table": of.name,
            "row": row.number,
            "method": method,
            "data": population.describe(),
            "stand_in": population.stand_in,
            "experiment": repr(experiment),
            "seed": trial.seed,
        },
    }
    # Methods that meet the same client share their seed, so that they are compared from the same start.
    seed = derive(trial.seed, "attack", trial.client)
    return Case(digest(*facts)[:32], title + (trial.part and f", {trial.part}"), experiment.probe, seed, trial, fields)


def weights_names(of: Table) -> list[str]:
    """Return the names of trained networks that rows of the table need or can use.

    >>> from fedglass.reproduce.tables import table
    >>> weights_names(table("c2f-figure9")), weights_names(table("c2f-figure14"))
    (['25', '50', '75', 'max'], ['53'])
    """
    names = [paper_of(of).network(part.setting) for row in of.rows for part in row.parts()]
    of_methods = _weights_of(of, *method_titles(of)) if of.name in paper_of(of).tables else []
    return list(dict.fromkeys([*filter(None, names), *of_methods]))


def check_options(of: Table, request: Request) -> None:
    """Raise an error for restarts that the paper does not have, sizes, and networks that no row of the table takes."""
    if request.restarts != 1 and not paper_of(of).restarts:
        raise UsageError(f"--restarts {request.restarts}: the attacks of {of.name} are not restarted: leave it out.")
    sides = paper_of(of).sides
    if sides and request.side not in sides:
        raise UsageError(f"--size {request.side}: the pictures of {of.name} are {' or '.join(map(str, sides))} wide.")
    accepted_names = weights_names(of)
    for name in request.weights:
        if not accepted_names:
            raise UsageError(f"No row of {of.name} takes a trained network: leave out --weights {name}=FILE.")
        if name not in accepted_names:
            raise unknown_name("network for --weights", name, accepted_names)


def check_networks(cells: Sequence[Cell], seed: int) -> None:
    """Raise an error if weights do not fit the networks that they are given for."""
    setups = [case.subject.experiment.setup for cell in cells if cell.request.weights for case in cell.cases]
    for setup in {(s.network, s.data, s.init): s for s in setups}.values():
        try:
            network_of(setup, seed)
        except ModelError as error:
            raise ModelError(
                f"{error} It is needed for {setup.data}'s images: choose with --rows those that it was trained for."
            ) from error


def skipped_rows(of: Table, rows: Sequence[Row], request: Request, methods: Sequence[str] = ()) -> list[str]:
    """Return sentences on rows, parts of averages and methods that are not run because they lack a trained network.

    >>> from fedglass.reproduce.tables import table
    >>> skipped_rows(table("c2f-figure9"), table("c2f-figure9").rows[:3], Request())
    ['Left out without --weights 25=FILE: row 2.', 'Left out without --weights 50=FILE: row 3.']
    """
    missing: dict[str, dict[int, str]] = {}
    for row in rows:
        names = [missing_weights(of, part.setting, request) for part in row.parts()]
        row_text = f"part of row {row.number}" if None in names else f"row {row.number}"
        for name in sorted({name for name in names if name is not None}):
            missing.setdefault(name, {})[row.number] = row_text
    texts = [f"Left out without --weights {name}=FILE: {', '.join(rows_.values())}." for name, rows_ in missing.items()]
    lacking = {method: _weights_of(of, method) for method in methods}
    return texts + [
        f"Left out without --weights {name}=FILE: method {method}."
        for method, names in lacking.items()
        for name in names
        if name not in request.weights
    ]
