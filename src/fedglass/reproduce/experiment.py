"""One experiment of a paper as a value: what the clients do, what the adversary knows, and what is measured."""

from __future__ import annotations

from dataclasses import dataclass, field

from fedglass.core.identity import LATER
from fedglass.core.types import Training
from fedglass.fl.aggregate.mean import WeightedMean
from fedglass.fl.aggregate.rule import Aggregator
from fedglass.fl.local import GradientFn, MeanGradient
from fedglass.fl.release import AsIs, Release
from fedglass.models.init import Initialisation, PyTorchDefault
from fedglass.reproduce.populations import Population
from fedglass.reproduce.probes.probe import PublishedProbe
from fedglass.rounds.behaviour.behaviour import Behaviour
from fedglass.rounds.behaviour.honest import Honest
from fedglass.rounds.views.aggregate import AggregateView
from fedglass.rounds.views.peer import PeerView
from fedglass.rounds.views.server import ServerView
from fedglass.rounds.views.view import Knows, View


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
