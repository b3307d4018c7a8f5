"""From an experiment to the audit's own source of its message: a federation of the setup's clients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from torch import nn

from fedglass.attack.best_of import with_training
from fedglass.attack.parts import no_progress
from fedglass.audit.public import Public, accuracy, model_after
from fedglass.audit.simulated import Simulated
from fedglass.audit.target import Target, target_of
from fedglass.core.errors import DataError, ModelError, UsageError
from fedglass.core.rng import derive
from fedglass.federation.client import Client
from fedglass.federation.federation import Federation
from fedglass.federation.peer import PeerView
from fedglass.federation.transcript import Round, Transcript
from fedglass.federation.views import ServerView
from fedglass.models.catalogue import build
from fedglass.models.weights import load_weights
from fedglass.reproduce.paper import Experiment, FederationRun, Setup
from fedglass.reproduce.populations import KINDS, Population


@dataclass(frozen=True)
class TrainedNetwork:
    """What a warm-up has left."""

    path: str
    accuracy: float


@dataclass(frozen=True, eq=False)
class SimulatedMessage:
    """The clients behind one message, who train where it is attacked."""

    experiment: Experiment
    clients: Sequence[Client]
    seed: int
    network: TrainedNetwork | None = None
    """What they start from, where there was a warm-up."""

    def target(self) -> Target:
        setup, supposed, network = self.experiment.setup, self.experiment.supposed, self.network
        model = network_of(setup, self.seed, None if network is None else network.path)
        federation = federation_of(setup, model, self.clients, self.seed)
        (found,) = Simulated(federation, views=(setup.view(),), knows=self.experiment.knows).targets(no_progress)
        target = found.target()
        seen = target.observation
        return replace(
            target,
            observation=seen if supposed is None else with_training(seen, supposed),
            utility={} if network is None else {"accuracy": network.accuracy},
        )


def clients_of_message(setup: Setup, population: Population, index: int) -> tuple[Client, ...]:
    """The clients behind the message at that position: one, or as many as are averaged in it."""
    if setup.sizes:
        drawn = population.apart(index, setup.sizes)
    else:
        first = index * setup.clients
        drawn = [population.client(first + i, setup.examples) for i in range(setup.clients)]
    return tuple(Client(name, images, labels, setup.gradient, setup.release) for name, images, labels in drawn)


def network_of(setup: Setup, seed: int, weights: str | None = None) -> nn.Module:
    """The server's network before any training, or as a warm-up has left it in a file."""
    kind = KINDS[setup.data]
    model = build(setup.network, shape=kind.shape, classes=kind.classes, init=setup.init, seed=seed)
    if weights is not None:
        try:
            load_weights(model, weights)
        except (DataError, ModelError) as error:
            # Nobody else wrote that file, so that it can be made again.
            raise DataError(
                f"The trained network {weights!r} is damaged and can not be used: delete the file, and the network is "
                "trained again."
            ) from error
    return model


def federation_of(
    setup: Setup, model: nn.Module, clients: Sequence[Client], seed: int, participation: float = 1.0
) -> Federation:
    """These clients and the setup's server."""
    kind = KINDS[setup.data]
    return Federation(
        model, clients, setup.training, kind.classes, kind.whitening, participation=participation, seed=seed
    )


# From an experiment to the target in a late round: a federation that is played from its first round on.


ACCURACY = "test accuracy"
MARKED = 10
"""Every so many rounds the model is tested."""
PATIENCE = 20
"""Rounds that a peer waits for one in which something of others got through the rule."""


@dataclass(frozen=True, eq=False)
class PlayedFederation:
    """A run of a federation, drawn by its number: network, data and training are its own."""

    experiment: Experiment
    population: Population
    index: int
    seed: int

    def target(self) -> Target:
        setup = self.experiment.setup
        course, seed = _course(setup), derive(self.seed, "run", self.index)
        federation = federation_of_run(setup, self.population, self.index, seed)
        test, utility = self.population.test(), dict[str, float]()
        for index, past in enumerate(federation.play(course.rounds + PATIENCE)):
            if (index + 1) % MARKED == 0 or index + 1 >= course.rounds:
                utility[f"{ACCURACY} after {index + 1}"] = accuracy(
                    model_after(federation.model, past), federation.whitening, test
                )
            if index + 1 >= course.rounds and (not setup.sizes or _readable(federation, past)):
                break
        else:
            raise UsageError(
                f"In {PATIENCE} rounds from round {course.rounds} on nothing of others got through the rule: choose "
                "another round."
            )
        view = PeerView(0, index) if setup.sizes else ServerView(0, index)
        transcript = Transcript(federation.model, federation.terms, {index: past})
        found = target_of(transcript, view, self.experiment.knows, federation.truths([index]))
        return replace(found, utility=utility, public=Public.of(test.images, test.labels))


def federation_of_run(setup: Setup, population: Population, index: int, seed: int) -> Federation:
    """The clients of one run, the first of whom is the adversary: it does not defend itself, and may send poison."""
    course, kind = _course(setup), KINDS[setup.data]
    sizes = setup.sizes or (setup.examples,) * setup.clients
    drawn = population.apart(index, sizes) if course.alpha is None else population.dealt(index, sizes, course.alpha)
    (name, images, labels), *others = drawn
    clients = [
        Client(name, images, labels, behaviour=course.behaviour),
        *(Client(*other, setup.gradient, setup.release) for other in others),
    ]
    model = network_of(setup, seed)
    return Federation(model, clients, setup.training, kind.classes, kind.whitening, aggregator=course.rule, seed=seed)


def _readable(federation: Federation, past: Round) -> bool:
    """Whether anything of others than the adversary is in the step."""
    return any(name != federation.clients[0].name for name in past.accepted)


def _course(setup: Setup) -> FederationRun:
    assert setup.federation_run is not None
    return setup.federation_run
