"""A re-creation as a list of cases: one experiment on one client, each with a name of its own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from fedglass.audit.cases import Case
from fedglass.core.errors import ModelError, UsageError, unknown_name
from fedglass.core.identity import digest, identity_text
from fedglass.core.rng import derive
from fedglass.reproduce.messages import network_of
from fedglass.reproduce.paper import Experiment, Setup, paper_of
from fedglass.reproduce.populations import Population
from fedglass.reproduce.tables import Request, Row, Setting, Table


@dataclass(frozen=True)
class Trial:
    """One experiment on one client."""

    experiment: Experiment
    population: Population
    client: int
    seed: int
    """What network, data and training are drawn from."""
    part: str = ""
    """Which of the settings that the row averages over."""


TrialCase = Case[Trial]
"""Equal trials have equal keys, whichever table asks for them."""


@dataclass(frozen=True, eq=False)
class Cell:
    """A row and a method of a table, with its cases."""

    row: Row
    method: str
    title: str
    """Of the method."""
    experiment: Experiment
    cases: Sequence[TrialCase]
    request: Request


def cases_of(cells: Sequence[Cell]) -> list[TrialCase]:
    """The cases of all cells, client by client so that every cell soon has a number."""
    return sorted((case for cell in cells for case in cell.cases), key=lambda case: case.subject.client)


def method_titles(of: Table) -> dict[str, str]:
    """The table's methods, and those of this package that can be compared with them, by name.

    >>> from fedglass.reproduce.tables import table
    >>> list(method_titles(table("sme-table2")))[:3]
    ['dlfa', 'ig', 'sme']
    """
    beside = paper_of(of).tables[of.name].extra_methods
    return {**of.methods, **{name: each.title for name, each in beside.items() if name not in of.methods}}


def choose_methods(of: Table, wanted: Sequence[str]) -> list[str]:
    """The methods of those names, or all that are published and those that the table has beside them."""
    known = method_titles(of)
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
    found, titles = [], method_titles(of)
    for row in rows:
        for method in methods:
            experiments = _experiments(of, row, method, request)
            _check_data(experiments.values(), clients, populations)
            cases = [
                _case(of, row, method, Trial(experiment, _population(experiment, populations), client, seed, part))
                for part, experiment in experiments.items()
                for client in range(clients)
            ]
            if cases:
                first = cases[0].subject.experiment
                found.append(Cell(row, method, titles[method], first, cases, request))
    return found


def _population(experiment: Experiment, populations: Mapping[str, Population]) -> Population:
    """The images of the experiment, under their own labels where a network has been trained on them."""
    found = populations[experiment.setup.data]
    trained = experiment.setup.warm_up is not None or experiment.setup.federation_run is not None
    return found.with_own_labels() if trained else found


def _check_data(experiments: Iterable[Experiment], clients: int, populations: Mapping[str, Population]) -> None:
    """Refuse before anything runs what the clients' data do not suffice for."""
    for setup in (experiment.setup for experiment in experiments):
        setup.check(populations[setup.data], clients)


def _experiments(of: Table, row: Row, method: str, request: Request) -> dict[str, Experiment]:
    """One for each part of the row whose trained network was given, or is not needed; by the part in words."""
    averaged = [field for field, value in row.setting.items() if isinstance(value, list)]
    made = paper_of(of).tables[of.name].experiment
    parts = [part for part in row.parts() if missing_weights(of, part.setting, request) is None]
    return {
        ", ".join(f"{of.columns[field]} {part.setting[field]}" for field in averaged): made(part, method, request)
        for part in parts
    }


def missing_weights(of: Table, setting: Setting, request: Request) -> str | None:
    """The name of the trained network that the setting needs and that was not given, if there is one."""
    trained = paper_of(of).network(setting)
    return None if trained is None or not trained.needed or trained.name in request.weights else trained.name


def data_kinds(of: Table, rows: Sequence[Row], methods: Sequence[str], request: Request | None = None) -> list[str]:
    """The kinds of data that these rows need; an error where none of them can be run."""
    asked = request or Request()
    made = [e.setup.data for row in rows for method in methods for e in _experiments(of, row, method, asked).values()]
    if not made:
        names = [missing_weights(of, part.setting, asked) for row in rows for part in row.parts()]
        files = " ".join(f"--weights {name}=FILE" for name in dict.fromkeys(names))
        raise UsageError(f"These rows of {of.name} need trained networks: give them as {files}.")
    return list(dict.fromkeys(made))


def _view_in_words(setup: Setup) -> str:
    if setup.federation_run is not None and not setup.sizes:
        return f"nobody: the model that {setup.clients} clients train is tested"
    if setup.sizes:
        return f"one of {setup.clients} clients sees the global models before and after the round, and its own examples"
    many = setup.clients > 1
    return f"the server sees the mean update of {setup.clients} clients" if many else "the server sees one update"


def _round(setup: Setup) -> int:
    """The number of the round that is looked at."""
    if setup.federation_run is not None:
        return setup.federation_run.rounds
    return 1 if setup.warm_up is None else setup.warm_up.rounds + 1


def _case(of: Table, row: Row, method: str, trial: Trial) -> TrialCase:
    experiment, setup, population = trial.experiment, trial.experiment.setup, trial.population
    facts = identity_text(experiment, "The experiment"), population.identity, str(trial.client), str(trial.seed)
    title = f"{of.name} row {row.number}, {method_titles(of)[method]}, client {trial.client}"
    known = {
        "attack": method,
        "attack_repr": repr(experiment.probe),
        "view": _view_in_words(setup),
        "round": _round(setup),
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
    return Case(digest(*facts)[:32], title + (trial.part and f", {trial.part}"), experiment.probe, seed, trial, known)


# What is said and refused before anything runs.


def weights_names(of: Table) -> list[str]:
    """The trained networks that rows of the table need or can use.

    >>> from fedglass.reproduce.tables import table
    >>> weights_names(table("c2f-figure9")), weights_names(table("c2f-figure14"))
    (['25', '50', '75', 'max'], ['53'])
    """
    found = [paper_of(of).network(part.setting) for row in of.rows for part in row.parts()]
    return list(dict.fromkeys(trained.name for trained in found if trained is not None))


def check_options(of: Table, request: Request) -> None:
    """Restarts that the paper does not have, and names of trained networks that no row of the table takes."""
    if request.restarts != 1 and not paper_of(of).restarts:
        raise UsageError(f"--restarts {request.restarts}: the attacks of {of.name} are not restarted: leave it out.")
    sides = paper_of(of).sides
    if sides and request.side not in sides:
        raise UsageError(f"--size {request.side}: the pictures of {of.name} are {' or '.join(map(str, sides))} wide.")
    known = weights_names(of)
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


def skipped_rows(of: Table, rows: Sequence[Row], request: Request) -> list[str]:
    """Which rows, and which parts of averages, are not run because their trained network was not given.

    >>> from fedglass.reproduce.tables import table
    >>> skipped_rows(table("c2f-figure9"), table("c2f-figure9").rows[:3], Request())
    ['Left out without --weights 25=FILE: row 2.', 'Left out without --weights 50=FILE: row 3.']
    """
    missing: dict[str, dict[int, str]] = {}
    for row in rows:
        names = [missing_weights(of, part.setting, request) for part in row.parts()]
        told = f"part of row {row.number}" if None in names else f"row {row.number}"
        for name in sorted({name for name in names if name is not None}):
            missing.setdefault(name, {})[row.number] = told
    return [f"Left out without --weights {name}=FILE: {', '.join(told.values())}." for name, told in missing.items()]
