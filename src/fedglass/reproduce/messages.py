"""From an experiment to the audit's own source of its message: a federation of the setup's clients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from torch import nn

from fedglass.attack.hypotheses import supposing
from fedglass.attack.parts import silent
from fedglass.audit.simulated import Simulated
from fedglass.audit.target import Target
from fedglass.core.errors import DataError, ModelError
from fedglass.models.catalogue import build
from fedglass.models.weights import load_weights
from fedglass.reproduce.experiment import Experiment, Setup
from fedglass.reproduce.populations import KINDS, Population
from fedglass.rounds.client import Client
from fedglass.rounds.federation import Federation


@dataclass(frozen=True)
class TrainedNetwork:
    """What a warm-up has left."""

    path: str
    accuracy: float


@dataclass(frozen=True, eq=False)
class Message:
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
        (found,) = Simulated(federation, views=(setup.view(),), knows=self.experiment.knows).targets(silent)
        target = found.target()
        seen = target.observation
        return replace(
            target,
            observation=seen if supposed is None else supposing(seen, supposed),
            utility={} if network is None else {"accuracy": network.accuracy},
        )


def members(setup: Setup, population: Population, index: int) -> tuple[Client, ...]:
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
