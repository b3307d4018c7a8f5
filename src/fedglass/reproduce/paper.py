"""A paper as a value. Each is a module of `papers`, named as its tables begin, whose PAPER says how rows are run.

A paper with much to re-create may have several: `malicious_theory` has tables of `malicious` too.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fedglass.attack.attack import Attack
from fedglass.core.errors import UsageError
from fedglass.core.identity import LATER
from fedglass.core.types import Training
from fedglass.federation.behaviours import Behaviour, Honest
from fedglass.federation.peer import PeerView
from fedglass.federation.views import AggregateView, Knows, ServerView, View
from fedglass.fl.aggregate.rule import Aggregator, WeightedMean
from fedglass.fl.local import GradientFn, MeanGradient
from fedglass.fl.release import AsIs, Release
from fedglass.models.init import Initialisation, PyTorchDefault
from fedglass.recipes import recipe
from fedglass.reproduce import papers
from fedglass.reproduce.populations import Population
from fedglass.reproduce.probes.probe import PublishedProbe
from fedglass.reproduce.tables import Request, Row, Setting, Table

if TYPE_CHECKING:
    from fedglass.reproduce.cases import Cell
    from fedglass.verdict.records import Record


# One experiment of a paper as a value: what the clients do, what the adversary knows, and what is measured.


@dataclass(frozen=True)
class WarmUp:
    """Rounds of federated averaging that come before the round that is attacked."""

    rounds: int
    training: Training
    examples: int | None = None
    """Of each client; None takes all that its writer has."""
    called: int = 10
    """Clients in each round."""


@dataclass(frozen=True)
class Course:
    """Rounds of one federation from its first to the one that is looked at, with an adversary among its clients."""

    rounds: int
    rule: Aggregator = field(default_factory=WeightedMean)
    behaviour: Behaviour = field(default_factory=Honest)
    """Of the first client, the adversary."""
    alpha: float | None = None
    """Of the Dirichlet distribution that each client's shares of the classes are drawn from; None takes any images."""


@dataclass(frozen=True)
class Setup:
    """All that decides a message, beside the data and the seed."""

    data: str
    """A kind of `populations.KINDS`."""
    network: str
    training: Training
    examples: int
    init: Initialisation = field(default_factory=PyTorchDefault)
    clients: int = 1
    """How many clients' updates the server sees as their mean."""
    gradient: GradientFn = field(default_factory=MeanGradient)
    """How a client takes the gradient in a local step: where some defences are."""
    release: Release = field(default_factory=AsIs)
    """What a client does to the update before it leaves: where the others are."""
    warm_up: WarmUp | None = None
    sizes: tuple[int, ...] = field(default=(), metadata=LATER)
    """The examples of each client of a round that one of them, the first, looks at; they share no image. Empty where
    the server looks. `round_of` fills in `examples` and `clients` after it."""
    course: Course | None = field(default=None, metadata=LATER)
    """Where the clients train together for many rounds; a draw of the data is then also one of network and training.
    The first client then takes its gradients without a defence."""

    def view(self) -> View:
        """Who looks at the message."""
        if self.sizes:
            return PeerView(client=0)
        return ServerView() if self.clients == 1 else AggregateView()

    def check(self, population: Population, messages: int) -> None:
        """Refuse before anything runs what the data do not suffice for."""
        if self.sizes:
            population.check(1, sum(self.sizes))
            return
        population.check(messages * self.clients, self.examples, self.clients)
        if self.warm_up is not None:
            population.check(1, self.warm_up.examples)


def round_of(data: str, network: str, training: Training, sizes: tuple[int, ...]) -> Setup:
    """A round of clients of these sizes as one of them sees it: two global models, and what it has put in itself."""
    return Setup(data, network, training, round(sum(sizes) / len(sizes)), clients=len(sizes), sizes=sizes)


@dataclass(frozen=True)
class Experiment:
    """A setup, what the adversary knows of it, and a probe."""

    setup: Setup
    probe: PublishedProbe
    knows: Knows = field(default_factory=Knows)
    supposed: Training | None = None
    """What the adversary takes for the clients' training, where that is wrong."""


@dataclass(frozen=True)
class Method:
    """A method of a table: the recipe that plays it."""

    recipe: str
    title: str = ""
    """Where it can be run beside the methods of any table; none where only the tables that print it have it."""
    options: Mapping[str, object] = field(default_factory=dict)

    def attack(self, request: Request, **options: object) -> Attack:
        """The recipe's attack, with as many iterations as were asked for."""
        asked = {} if request.iterations is None else {"iterations": request.iterations}
        found = recipe(self.recipe, **{**self.options, **options, **asked})
        if not isinstance(found, Attack):
            raise UsageError(f"The recipe {self.recipe!r} tries several attacks: a table takes one.")
        return found


@dataclass(frozen=True)
class Yardstick:
    """What stands beside the methods of a table without being an attack, such as a blind guess."""

    title: str


@dataclass(frozen=True, eq=False)
class Recreation:
    """How a table is run."""

    experiment: Callable[[Row, str, Request], Experiment]
    """From a row, a method and what was asked."""
    beside: Mapping[str, Method | Yardstick] = field(default_factory=dict)
    """Methods that the table does not print but can be compared with."""


@dataclass(frozen=True)
class Comparison:
    """A table that is compared with what is built, without a run; each line ends with what is printed and built."""

    heads: Sequence[str]
    lines: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Trained:
    """A trained network that a setting starts from."""

    name: str
    """On the command line."""
    needed: bool = True
    """Whether an untrained network can not stand in for it."""


def untrained(setting: Setting) -> Trained | None:
    """Of papers that are given no trained networks."""
    return None


@dataclass(frozen=True, eq=False)
class Paper:
    """All that is one paper's own."""

    tables: Mapping[str, Recreation]
    compared: Mapping[str, Callable[[Table], Comparison]] = field(default_factory=dict)
    network: Callable[[Setting], Trained | None] = untrained
    sides: Sequence[int] = ()
    """Sizes that its pictures can be brought to, where they can."""
    restarts: bool = False
    """Whether its attacks are restarted."""
    derived: Mapping[str, Callable[[Cell, Mapping[str, Record]], float | None]] = field(default_factory=dict)
    """Measures that are taken over all runs of a cell, by their names in the tables."""
    remarks: Callable[[Table, Sequence[Cell]], list[str]] | None = None
    """What the reader must know of its runs, in place of what is said of every paper's iterations."""


def paper_of(table: Table) -> Paper:
    """The paper that a table is in, by the beginning of its name.

    >>> from fedglass.reproduce.tables import table
    >>> "dlfa-table1" in paper_of(table("dlfa-table1")).tables
    True
    """
    found = _modules(table.name.partition("-")[0])
    return next(paper for paper in found if table.name in (*paper.tables, *paper.compared))


@functools.cache
def _modules(name: str) -> tuple[Paper, ...]:
    """Those of one paper."""
    known = sorted(module.name for module in pkgutil.iter_modules(papers.__path__))
    own = [module for module in known if module == name or module.startswith(f"{name}_")]
    return tuple(importlib.import_module(f"{papers.__name__}.{module}").PAPER for module in own)
