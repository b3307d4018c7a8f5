"""The message of an experiment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save

from fedglass.core.tensors import flatten, weights_of
from fedglass.core.types import Observation, Training
from fedglass.federation.client import Client
from fedglass.federation.truth import Truth
from fedglass.federation.views import Knows
from fedglass.fl.local import schedule, train
from fedglass.models.network import Network
from fedglass.reproduce.image_sources import Population, populations
from fedglass.reproduce.messages import clients_of_message, network_of, simulated_message
from fedglass.reproduce.paper import Experiment, Setup, WarmUp
from fedglass.reproduce.probes.geometry import Geometry
from fedglass.reproduce.run import warm_up_network

SETUP = Setup("femnist", "lenet", Training(0.05, epochs=3, batch_size=2), examples=4)
TOLD = Knows(labels=True, batch_labels=True)


def observe(experiment: Experiment, clients: Sequence[Client]) -> tuple[Observation, Truth]:
    target = simulated_message(experiment, clients, seed=0)
    return target.observation, target.known_truth


@pytest.fixture(scope="module")
def population() -> Population:
    return populations(["femnist"], [], None, seed=0)["femnist"]


def test_a_message_is_the_clients_training(population: Population) -> None:
    clients = clients_of_message(SETUP, population, 0)
    experiment = Experiment(replace(SETUP, training=replace(SETUP.training, shuffle=False)), Geometry(), TOLD)
    seen, truth = observe(experiment, clients)
    network = Network(seen.model, seen.buffers, SETUP.training.batch_norm)
    start = [seen.before[name] for name in network.names]
    inputs = seen.knows.whitening.whiten(truth.images)
    after = train(network, start, inputs, truth.labels, schedule(SETUP.training, 4, None), SETUP.training)
    for name, before, end in zip(network.names, start, after, strict=True):
        torch.testing.assert_close(seen.update[name], end - before)


def test_batches_are_shuffled_anew_or_the_same_in_each_epoch(population: Population) -> None:
    clients = clients_of_message(replace(SETUP, examples=12), population, 0)
    for shuffled in (True, False):
        training = replace(SETUP.training, shuffle=shuffled)
        experiment = Experiment(replace(SETUP, examples=12, training=training), Geometry(), TOLD)
        batches = observe(experiment, clients)[0].knows.batch_labels
        assert batches is not None
        epochs = [batches[i : i + 6] for i in range(0, 18, 6)]
        assert (epochs[0] == epochs[1] == epochs[2]) == (not shuffled)
        assert len({tuple(sorted(label for b in epoch for label in b)) for epoch in epochs}) == 1


def test_an_aggregate_is_the_mean_of_its_clients(population: Population) -> None:
    both = clients_of_message(replace(SETUP, clients=2), population, 1)
    assert [c.name for c in both] == ["writer 2 (client 2)", "writer 3 (client 3)"]
    together, truth = observe(Experiment(replace(SETUP, clients=2), Geometry(), TOLD), both)
    alone = [flatten(observe(Experiment(SETUP, Geometry(), TOLD), [c])[0].update) for c in both]
    torch.testing.assert_close(flatten(together.update), (alone[0] + alone[1]) / 2)
    assert (together.knows.clients, together.knows.examples, len(truth.images)) == (2, 8, 8)


def test_what_the_adversary_supposes_changes_nothing_that_it_sees(population: Population) -> None:
    clients = clients_of_message(SETUP, population, 0)
    right, _ = observe(Experiment(SETUP, Geometry()), clients)
    wrong, _ = observe(Experiment(SETUP, Geometry(), supposed=Training(0.05, 6, 4)), clients)
    assert torch.equal(flatten(right.update), flatten(wrong.update))
    assert wrong.knows.training == Training(0.05, 6, 4)


def test_a_warm_up_trains_the_network(population: Population) -> None:
    warm = replace(SETUP, warm_up=WarmUp(2, Training(0.1, batch_size=20), examples=40, called=3))
    heard: list[tuple[int, int]] = []
    model = warm_up_network(warm, population, 0, lambda done, total: heard.append((done, total)))
    assert heard == [(1, 2), (2, 2)]
    start = weights_of(network_of(warm, 0))
    assert not torch.equal(flatten(weights_of(model)), flatten(start))
    again = warm_up_network(warm, population, 0, lambda done, total: None)
    assert torch.equal(flatten(weights_of(model)), flatten(weights_of(again)))
    assert clients_of_message(warm, population, 0)[0].labels.max() < 62


def test_a_longer_warm_up_goes_through_a_shorter_one(population: Population, tmp_path: Path) -> None:
    short, long = (replace(SETUP, warm_up=WarmUp(n, Training(0.1), examples=20, called=2)) for n in (1, 2))
    path = tmp_path / "short.safetensors"
    path.write_bytes(save(warm_up_network(short, population, 0, lambda done, total: None).state_dict()))
    continued = warm_up_network(long, population, 0, lambda done, total: None, 1, str(path))
    straight = warm_up_network(long, population, 0, lambda done, total: None)
    assert torch.equal(flatten(weights_of(continued)), flatten(weights_of(straight)))


def test_without_a_warm_up_the_network_is_untrained(population: Population) -> None:
    model = warm_up_network(SETUP, population, 0, lambda done, total: None)
    assert torch.equal(flatten(weights_of(model)), flatten(weights_of(network_of(SETUP, 0))))
