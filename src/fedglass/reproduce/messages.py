"""The message of one experiment: a federation of the setup's clients, and what the adversary sees of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import nn

from fedglass.attack.hypotheses import supposing
from fedglass.core.errors import DataError, ModelError
from fedglass.core.rng import derive, stream
from fedglass.core.types import Observation
from fedglass.fl.release import AsIs
from fedglass.models.catalogue import build
from fedglass.models.weights import load_weights
from fedglass.reproduce.experiment import Defended, Experiment, Setup, WarmUp
from fedglass.reproduce.populations import KINDS, Population
from fedglass.rounds.client import Client
from fedglass.rounds.federation import Federation
from fedglass.rounds.observe import observe as played
from fedglass.rounds.truth import Truth
from fedglass.rounds.views.aggregate import AggregateView
from fedglass.rounds.views.server import ServerView

MOST_WRITERS = 100
"""Clients that a warm-up draws from, where the data have more writers."""

JUDGED = 1000
"""Images that an accuracy is taken over, drawn from all of them."""


def members(setup: Setup, population: Population, index: int) -> tuple[Client, ...]:
    """The clients behind the message at that position: one, or as many as are averaged in it."""
    first, own_labels = index * setup.clients, setup.warm_up is not None
    drawn = [population.client(first + i, setup.examples, own_labels) for i in range(setup.clients)]
    release = setup.release if isinstance(setup, Defended) else AsIs()
    return tuple(Client(name, images, labels, setup.gradient, release) for name, images, labels in drawn)


def observe(
    experiment: Experiment, clients: Sequence[Client], seed: int, weights: str | None = None
) -> tuple[Observation, Truth]:
    """What the adversary sees of these clients, and the truth behind it.

    `weights` is the file of a network that `warmed_up` has trained.
    """
    setup = experiment.setup
    model = network_of(setup, seed)
    if weights is not None:
        _resume(model, weights)
    federation = _federation(setup, model, clients, seed)
    view = ServerView() if setup.clients == 1 else AggregateView()
    seen, truth = played(federation, view, experiment.knows)
    return (seen if experiment.supposed is None else supposing(seen, experiment.supposed)), truth


def network_of(setup: Setup, seed: int) -> nn.Module:
    """The server's network before any training."""
    kind = KINDS[setup.data]
    return build(setup.network, shape=kind.shape, classes=kind.classes, init=setup.init, seed=seed)


@dataclass(frozen=True)
class Checkpoint:
    """A network that a shorter warm-up has left."""

    rounds: int
    weights: str


def warmed_up(
    setup: Setup,
    population: Population,
    seed: int,
    progress: Callable[[int, int], None],
    since: Checkpoint | None = None,
) -> nn.Module:
    """The network after the rounds of the setup's warm-up, which keeps the data's own labels."""
    warm_up = setup.warm_up
    model = network_of(setup, seed)
    if warm_up is None:
        return model
    if since is not None:
        _resume(model, since.weights)
    clients = _crowd(warm_up, population)
    share = min(1.0, warm_up.called / len(clients))
    plan = replace(setup, training=warm_up.training)
    for index in range(0 if since is None else since.rounds, warm_up.rounds):
        # One round at a time: a transcript of all of them would hold every client's update.
        federation = _federation(plan, model, clients, derive(seed, "warm-up", index), share)
        model.load_state_dict(dict(federation.run().rounds[0].after), strict=False)
        progress(index + 1, warm_up.rounds)
    return model


def accuracy(setup: Setup, population: Population, seed: int, weights: str) -> float:
    """Share of the data that a trained network classifies rightly: how far its training has come."""
    model = network_of(setup, seed)
    _resume(model, weights)
    data = population.dataset(own_labels=True)
    rows = torch.randperm(len(data), generator=stream(seed, "accuracy"))[:JUDGED]
    with torch.no_grad():
        logits = model.eval()(data.whitening.whiten(data.images[rows]))
    return float((logits.argmax(1) == data.labels[rows]).double().mean())


def _resume(model: nn.Module, path: str) -> None:
    """Load what an earlier run has trained: nobody else wrote that file, so that it can be made again."""
    try:
        load_weights(model, path)
    except (DataError, ModelError) as error:
        raise DataError(
            f"The trained network {path!r} is damaged and can not be used: delete the file, and the network is trained "
            "again."
        ) from error


def _crowd(warm_up: WarmUp, population: Population) -> list[Client]:
    found = population.writers(warm_up.examples)
    population.check(1, warm_up.examples)
    count = MOST_WRITERS if found is None else min(found, MOST_WRITERS)
    members = (population.client(i, warm_up.examples, own_labels=True) for i in range(count))
    return [Client(name, images, labels) for name, images, labels in members]


def _federation(
    setup: Setup, model: nn.Module, clients: Sequence[Client], seed: int, participation: float = 1.0
) -> Federation:
    kind, training = KINDS[setup.data], replace(setup.training, shuffle=setup.shuffled)
    return Federation(model, clients, training, kind.classes, kind.whitening, participation=participation, seed=seed)
