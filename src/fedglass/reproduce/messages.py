"""Messages of experiments: one round of a setup's clients, or a federation played from its first round on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from torch import nn

from fedglass.attack.best_of import with_training
from fedglass.attack.parts import no_progress
from fedglass.audit.public_data import Public, accuracy, model_after
from fedglass.audit.simulated import Simulated
from fedglass.audit.target import Target, ready_target, target_of
from fedglass.core.errors import DataError, ModelError, UsageError
from fedglass.core.rng import derive
from fedglass.federation.client import Client
from fedglass.federation.federation import Federation
from fedglass.federation.peer import PeerView
from fedglass.federation.transcript import Round, Transcript
from fedglass.federation.views import ServerView
from fedglass.models.catalogue import build
from fedglass.models.init import load_weights
from fedglass.reproduce.image_sources import KINDS, Population
from fedglass.reproduce.paper import Experiment, Setup


def simulated_message(
    experiment: Experiment,
    clients: Sequence[Client],
    seed: int,
    weights: str | None = None,
    utility: Mapping[str, float] | None = None,
) -> Target:
    """Return one message of some clients.

    Args:
        experiment: The setup, and what the adversary knows of it.
        clients: The clients behind the message.
        seed: The seed of network and training.
        weights: The file of the network after its warm-up, if it has one.
        utility: The accuracy of that network.
    """
    setup, supposed = experiment.setup, experiment.supposed
    federation = federation_of(setup, network_of(setup, seed, weights), clients, seed)
    (pending,) = Simulated(federation, views=(setup.view(),), knows=experiment.knows).targets(no_progress)
    target = ready_target(pending)
    observation = target.observation if supposed is None else with_training(target.observation, supposed)
    return replace(target, observation=observation, utility=utility or {})


def clients_of_message(setup: Setup, population: Population, index: int) -> tuple[Client, ...]:
    """Return the clients behind the message of that number: one, or as many as are averaged in it."""
    if setup.sizes:
        drawn = population.apart(index, setup.sizes)
    else:
        first = index * setup.clients
        drawn = [population.client(first + i, setup.examples) for i in range(setup.clients)]
    return tuple(Client(name, images, labels, setup.gradient, setup.release) for name, images, labels in drawn)


def network_of(setup: Setup, seed: int, weights: str | None = None) -> nn.Module:
    """Return the server's network before any training, or as a warm-up has saved it."""
    kind = KINDS[setup.data]
    model = build(setup.network, shape=kind.shape, classes=kind.classes, init=setup.init, seed=seed)
    if weights is not None:
        try:
            load_weights(model, weights)
        except (DataError, ModelError) as error:
            # Only fedglass writes that file, so that it can be made again.
            raise DataError(
                f"The trained network {weights!r} is damaged and cannot be used: delete the file, and the network is "
                "trained again."
            ) from error
    return model


def federation_of(
    setup: Setup, model: nn.Module, clients: Sequence[Client], seed: int, participation: float = 1.0
) -> Federation:
    """Return a federation of these clients with the setup's server."""
    kind = KINDS[setup.data]
    return Federation(
        model, clients, setup.training, kind.classes, kind.whitening, participation=participation, seed=seed
    )


ACCURACY = "test accuracy"
MARKED = 10
"""The model is tested every so many rounds."""
PATIENCE = 20
"""Rounds that a peer waits for one in which the rule accepts an update of another client."""


def played_federation(experiment: Experiment, population: Population, number: int, seed: int) -> Target:
    """Play a federation up to a late round; the number of the run determines network, data and training."""
    setup, run = experiment.setup, experiment.setup.federation_run
    assert run is not None
    federation = attacked = federation_of_run(setup, population, number, derive(seed, "run", number))
    if run.before is not None:  # in the attacked round each client has its attacked batch only
        batches = zip(federation.clients, setup.sizes, strict=True)
        clients = [replace(c, images=c.images[:size], labels=c.labels[:size]) for c, size in batches]
        attacked = replace(federation, clients=clients, training=setup.training)
    test, utility = population.test(), dict[str, float]()
    for index, round_ in enumerate(federation.play(run.rounds + PATIENCE)):
        if (index + 1) % MARKED == 0 or index + 1 >= run.rounds:
            utility[f"{ACCURACY} after {index + 1}"] = accuracy(
                model_after(federation.model, round_), federation.whitening, test
            )
        if index + 1 < run.rounds:
            continue
        seen = round_ if attacked is federation else attacked.repeat_round(index, round_)
        if not setup.sizes or readable(federation, seen):
            break
    else:
        raise UsageError(
            f"In {PATIENCE} rounds from round {run.rounds} on, the rule accepted no update of another client: "
            "choose another round."
        )
    view = PeerView(0, index) if setup.sizes else ServerView(0, index)
    transcript = Transcript(federation.model, attacked.terms, {index: seen})
    truths = attacked.truths([index])
    target = target_of(transcript, view, view.see(transcript, experiment.knows, truths), truths)
    return replace(target, utility=utility, public=Public.of(test.images, test.labels))


def federation_of_run(setup: Setup, population: Population, index: int, seed: int) -> Federation:
    """Return the clients of one run. The first is the adversary: it does not defend itself, and may send poison."""
    run, kind = setup.federation_run, KINDS[setup.data]
    assert run is not None
    owned = setup.sizes or (setup.examples,) * setup.clients
    sizes = owned if run.before is None else (run.before.examples,) * setup.clients
    training = setup.training if run.before is None else run.before.training
    drawn = population.apart(index, sizes) if run.alpha is None else population.dealt(index, sizes, run.alpha)
    (name, images, labels), *honest = drawn
    clients = [
        Client(name, images, labels, behaviour=run.behaviour),
        *(Client(*examples, setup.gradient, setup.release) for examples in honest),
    ]
    model = network_of(setup, seed)
    return Federation(model, clients, training, kind.classes, kind.whitening, aggregator=run.rule, seed=seed)


def readable(federation: Federation, round_: Round) -> bool:
    """Return whether the rule accepted an update of a client other than the adversary."""
    return any(name != federation.clients[0].name for name in round_.accepted)
