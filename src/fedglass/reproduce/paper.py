"""Papers as values: the setups, methods and tables of a paper, from which its experiments are made.

Each paper is a module of `papers`, named as its tables begin. Its constant PAPER tells how rows are run.
"""

from __future__ import annotations

import importlib
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
from fedglass.reproduce.image_sources import Population
from fedglass.reproduce.probes.probe import PublishedProbe
from fedglass.reproduce.tables import Request, Row, Setting, Table, content, paper_name

if TYPE_CHECKING:
    from fedglass.reproduce.cases import Cell
    from fedglass.verdict.records import Record


@dataclass(frozen=True)
class WarmUp:
    """Rounds of federated averaging that come before the round that is attacked."""

    rounds: int
    training: Training
    examples: int | None = None
    """Examples of each client; None takes all that its writer has."""
    called: int = 10
    """Clients in each round, unless `share` is given."""
    share: float | None = field(default=None, metadata=LATER)
    """Share of the clients in each round, at least one of them."""

    def participation(self, clients: int) -> float:
        """Return the share of so many clients that take part in a round.

        >>> WarmUp(5, Training(0.1)).participation(20), WarmUp(5, Training(0.1), share=0.1).participation(20)
        (0.5, 0.1)
        """
        return min(1.0, self.called / clients) if self.share is None else self.share


@dataclass(frozen=True)
class ClientTraining:
    """The number of examples that each client of a federation owns, and how it trains on them."""

    examples: int
    training: Training


@dataclass(frozen=True)
class FederationRun:
    """Rounds of one federation from its first to the attacked one, with an adversary among its clients."""

    rounds: int
    rule: Aggregator = field(default_factory=WeightedMean)
    behaviour: Behaviour = field(default_factory=Honest)
    """Behaviour of the first client, the adversary."""
    alpha: float | None = None
    """Parameter of the Dirichlet distribution of each client's shares of the classes; None takes any images."""
    before: ClientTraining | None = field(default=None, metadata=LATER)
    """Data and training of every client before the attacked round. In that round a client takes the first of its
    examples, as many as `Setup.sizes` has for it. None if the clients own those examples only."""


@dataclass(frozen=True)
class Setup:
    """Everything that determines a message, apart from the data and the seed."""

    data: str
    """A key of `populations.KINDS`."""
    network: str
    training: Training
    examples: int
    init: Initialisation = field(default_factory=PyTorchDefault)
    clients: int = 1
    """The number of clients with updates that the server sees as their mean."""
    gradient: GradientFn = field(default_factory=MeanGradient)
    """How a client computes the gradient of a local step; some defences act here."""
    release: Release = field(default_factory=AsIs)
    """What a client does to the update before it is sent; the other defences act here."""
    warm_up: WarmUp | None = None
    sizes: tuple[int, ...] = field(default=(), metadata=LATER)
    """The numbers of examples of the clients of a round that the first of them attacks; they share no image. Empty if
    the server attacks. `peer_setup` derives `examples` and `clients` from it."""
    federation_run: FederationRun | None = field(default=None, metadata=LATER)
    """Given if the clients train together for many rounds. A draw of the data is then also one of network and
    training, and the first client computes its gradients without a defence."""

    def view(self) -> View:
        """Return the view of the adversary."""
        if self.sizes:
            return PeerView(client=0)
        return ServerView() if self.clients == 1 else AggregateView()

    def check(self, population: Population, messages: int) -> None:
        """Raise an error, before anything runs, if there are not enough data."""
        if self.sizes:
            population.check(1, sum(self.sizes))
            return
        population.check(messages * self.clients, self.examples, self.clients)
        if self.warm_up is not None:
            population.check(1, self.warm_up.examples)


def peer_setup(data: str, network: str, training: Training, sizes: tuple[int, ...]) -> Setup:
    """Return a round of clients of these sizes as the first of them sees it: two global models and its own update."""
    return Setup(data, network, training, round(sum(sizes) / len(sizes)), clients=len(sizes), sizes=sizes)


@dataclass(frozen=True)
class Experiment:
    """A setup, what the adversary knows of it, and a probe."""

    setup: Setup
    probe: PublishedProbe
    knows: Knows = field(default_factory=Knows)
    supposed: Training | None = None
    """The training that the adversary assumes, if it is wrong about the clients'."""


@dataclass(frozen=True)
class Method:
    """A method of a table and the recipe that it runs."""

    recipe: str
    """Empty for a blind guess or an oracle, which is compared with the methods of a table but is not an attack."""
    title: str = ""
    """Empty if only tables that print the method can run it."""
    options: Mapping[str, object] = field(default_factory=dict)
    weights: str = ""
    """Trained network that the method needs, given with `--weights NAME=FOLDER`; empty if it needs none."""

    def attack(self, request: Request, **options: object) -> Attack:
        """Return the recipe's attack, with the requested number of iterations."""
        requested = {} if request.iterations is None else {"iterations": request.iterations}
        attack = recipe(self.recipe, **{**self.options, **options, **requested})
        if not isinstance(attack, Attack):
            raise UsageError(f"The recipe {self.recipe!r} tries several attacks, but a table takes one.")
        return attack


def methods_of(paper: str) -> dict[str, Method]:
    """Return the methods of a paper by name: its own, and this package's for the same tables.

    >>> methods_of("sme")["fast"]
    Method(recipe='sme', title="this package's sme", options={}, weights='')
    """
    return {name: Method(**fields) for name, fields in content("methods")[paper].items()}


@dataclass(frozen=True, eq=False)
class Recreation:
    """The way to run the rows of a table."""

    experiment: Callable[[Row, str, Request], Experiment]
    """Make an experiment from a row, a method and the user's request."""
    extra_methods: Mapping[str, Method] = field(default_factory=dict)
    """Methods that the table does not print but that it can be compared with."""


@dataclass(frozen=True)
class Comparison:
    """A table that is compared without a run; each line ends with the printed and the computed value."""

    heads: Sequence[str]
    lines: Sequence[Sequence[str]]
    measured: Mapping[tuple[int, str], Mapping[str, float]]
    """Computed measures by row and method; `same_` before the name of a printed text is 1 where it came out."""


def no_weights(setting: Setting) -> str | None:
    """Return None: the paper takes no trained networks."""
    return None


@dataclass(frozen=True, eq=False)
class Paper:
    """The tables of one paper and how they are run."""

    tables: Mapping[str, Recreation]
    compared: Mapping[str, Callable[[Table], Comparison]] = field(default_factory=dict)
    network: Callable[[Setting], str | None] = no_weights
    """The trained network that a setting starts from, NAME of `--weights NAME=FILE`; None if it takes none."""
    optional_networks: Sequence[str] = ()
    """Those of them that an untrained network may stand in for."""
    sides: Sequence[int] = ()
    """Sides that its pictures can be resized to; empty if they cannot."""
    restarts: bool = False
    """Whether its attacks are restarted."""
    iterations: Mapping[str, int] = field(default_factory=dict)
    """Iterations of the paper's attacks by method, where the recipe's default is another number."""
    derived: Mapping[str, Callable[[Cell, Mapping[str, Record]], float | None]] = field(default_factory=dict)
    """Measures that are computed from all runs of a cell, by their names in the tables."""
    remarks: Callable[[Table, Sequence[Cell]], list[str]] | None = None
    """Sentences on how the runs differ from the paper's; None uses the general ones on iterations."""


def paper_of(table: Table) -> Paper:
    """Return the paper of a table, by the beginning of its name.

    >>> from fedglass.reproduce.tables import table
    >>> "dlfa-table1" in paper_of(table("dlfa-table1")).tables
    True
    """
    module = importlib.import_module(f"{papers.__name__}.{paper_name(table.name)}")
    paper: Paper = module.PAPER
    return paper
