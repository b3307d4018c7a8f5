"""At the truth every exact operator predicts what was sent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from fedglass.attack.forward.gradients import AlongSegment, OneGradient, OnSegment, RepeatedGradient
from fedglass.attack.forward.unroll import Unroll, UnrollEpochs
from fedglass.attack.parts import BoundForward, Forward
from fedglass.core.optimisers import SGD, Adam, AdamW, Optimiser
from fedglass.core.types import BatchNorm, Candidate, Observation, Training
from fedglass.federation.federation import Federation, observe
from fedglass.federation.views import AggregateView, Knows, ServerView

PLANS = [
    Training(0.3),
    Training(0.3, batch_size=2),
    Training(0.3, epochs=3),
    Training(0.3, epochs=2, batch_size=2),
    Training(0.3, epochs=3, batch_size=3),  # 5 examples: the last batch is short
    Training(0.3, epochs=2, batch_size=1),
    Training(0.3, 2, 2, optimiser=SGD(weight_decay=0.1)),
    Training(0.3, 2, 2, optimiser=SGD(momentum=0.9)),
    Training(0.3, 2, 2, optimiser=SGD(0.9, dampening=0.2, weight_decay=0.1)),
    Training(0.3, 2, 2, optimiser=SGD(0.9, nesterov=True)),
    Training(0.01, optimiser=Adam()),
    Training(0.01, 2, 2, optimiser=Adam()),
    Training(0.01, 2, 2, optimiser=Adam((0.5, 0.9), 1e-4, 0.1)),
    Training(0.01, 2, 2, optimiser=AdamW()),
    Training(0.3, 2, 2, clip=0.1),
    Training(0.3, 2, 2, label_smoothing=0.2),
    Training(0.3, 3, 2, shuffle=False),
    Training(0.3, batch_size=2, steps=2),
    Training(0.3, batch_size=2, steps=7),
    Training(0.01, batch_size=2, steps=5, optimiser=Adam(), clip=0.1, label_smoothing=0.1, shuffle=False),
]
ONE_STEP = [
    Training(0.3),
    Training(0.3, optimiser=SGD(momentum=0.9)),
    Training(0.3, optimiser=SGD(0.9, nesterov=True)),
    Training(0.3, clip=0.1),
    Training(0.3, label_smoothing=0.2),
    Training(0.3, steps=1, shuffle=False),
]


def residual(bound: BoundForward, candidate: Candidate, own: Sequence[Tensor] = ()) -> float:
    """|A(x) - y| / |y|"""
    predicted = [p.detach() for p in bound.predict(candidate, own)]
    off, size = (
        torch.cat([t.flatten() for t in tensors]).norm()
        for tensors in ([p - y for p, y in zip(predicted, bound.target, strict=True)], bound.target)
    )
    return float(off / size)


def seen_by_server(federation: Federation, client: int = 0, round_index: int = 0) -> Observation:
    return observe(federation, ServerView(client, round_index), Knows())[0]


@pytest.mark.parametrize("statistics", list(BatchNorm))
@pytest.mark.parametrize("plan", PLANS, ids=repr)
def test_unroll(toy: Any, plan: Training, statistics: BatchNorm) -> None:
    federation = toy.federation(replace(plan, batch_norm=statistics), model=toy.normalised(), examples=5)
    assert residual(Unroll().bind(seen_by_server(federation)), toy.trained_on(federation)) < 1e-6


@pytest.mark.parametrize("statistics", list(BatchNorm))
def test_unroll_in_a_later_round(toy: Any, statistics: BatchNorm) -> None:
    federation = toy.federation(
        Training(0.3, 2, 2, batch_norm=statistics), model=toy.normalised(), examples=5, clients=2
    )
    candidate = toy.trained_on(federation, client=1, round_index=2)
    assert residual(Unroll().bind(seen_by_server(federation, 1, 2)), candidate) < 1e-6


@pytest.mark.parametrize("clients", [2, 4])
@pytest.mark.parametrize("plan", PLANS, ids=repr)
def test_unroll_of_an_aggregate(toy: Any, plan: Training, clients: int) -> None:
    federation = toy.federation(plan, clients=clients, examples=5)
    parts = [toy.trained_on(federation, i) for i in range(clients)]
    candidate = Candidate(torch.cat([p.images for p in parts], 1), torch.cat([p.labels for p in parts], 1))
    observation = observe(federation, AggregateView(), Knows())[0]
    assert residual(Unroll().bind(observation), candidate) < 1e-5


@pytest.mark.parametrize("budget", [1024.0, 0.2])
def test_unroll_of_shared_images_in_the_told_order(toy: Any, budget: float) -> None:
    """With the labels of each batch told, one row of images explains all epochs, where no label comes twice."""
    federation = toy.federation(Training(0.3, 3, 2), examples=5)
    client = replace(federation.clients[0], labels=torch.tensor([2, 0, 4, 1, 3]))
    federation = replace(federation, clients=[client])
    truth = toy.trained_on(federation)
    candidate = Candidate(truth.images[:1], truth.labels)
    assert residual(Unroll(budget).bind(seen_by_server(federation)), candidate) < 1e-6
    wrong = Candidate(truth.images[:1], truth.labels[0])  # the same order in each epoch
    assert residual(Unroll(budget).bind(seen_by_server(federation)), wrong) > 1e-4


@pytest.mark.parametrize("forward", [OneGradient(), RepeatedGradient(), Unroll(), UnrollEpochs()], ids=repr)
@pytest.mark.parametrize("statistics", list(BatchNorm))
@pytest.mark.parametrize("plan", ONE_STEP, ids=repr)
def test_every_operator_is_exact_for_fedsgd(toy: Any, forward: Forward, plan: Training, statistics: BatchNorm) -> None:
    federation = toy.federation(replace(plan, batch_norm=statistics), model=toy.normalised(), examples=5)
    assert residual(forward.bind(seen_by_server(federation)), toy.trained_on(federation)) < 1e-5


@pytest.mark.parametrize("forward", [OneGradient(), RepeatedGradient(), Unroll(), UnrollEpochs()], ids=repr)
def test_every_operator_is_exact_for_an_aggregate_of_fedsgd(toy: Any, forward: Forward) -> None:
    federation = toy.federation(Training(0.3), clients=3, examples=4)
    parts = [toy.trained_on(federation, i) for i in range(3)]
    candidate = Candidate(torch.cat([p.images for p in parts], 1), torch.cat([p.labels for p in parts], 1))
    observation = observe(federation, AggregateView(), Knows())[0]
    assert residual(forward.bind(observation), candidate) < 1e-5


def test_the_segment_is_exact_for_fedsgd_at_its_start(toy: Any) -> None:
    federation = toy.federation(Training(0.3), examples=5)
    bound, truth = OnSegment().bind(seen_by_server(federation)), toy.trained_on(federation)
    assert residual(bound, truth, [torch.tensor(0.0)]) < 1e-5
    assert residual(bound, truth, [torch.tensor(1.0)]) > 1e-3


@pytest.mark.parametrize("points", [1, 2, 5])
def test_one_step_has_one_point(toy: Any, points: int) -> None:
    federation = toy.federation(Training(0.3), examples=5)
    bound = AlongSegment(points).bind(seen_by_server(federation))
    assert residual(bound, toy.trained_on(federation)) < 1e-5


@pytest.mark.parametrize("forward", [Unroll(), UnrollEpochs()], ids=repr)
@pytest.mark.parametrize(
    "plan",
    [
        Training(0.3, epochs=3),
        Training(0.3, steps=3),
        Training(0.3, epochs=3, optimiser=SGD(0.9, nesterov=True, weight_decay=0.1)),
        Training(0.01, epochs=3, optimiser=Adam()),
        Training(0.01, epochs=3, optimiser=AdamW(), clip=0.1, label_smoothing=0.1),
    ],
    ids=repr,
)
def test_one_batch_for_each_epoch_is_what_unroll_epochs_simulates(toy: Any, forward: Forward, plan: Training) -> None:
    federation = toy.federation(plan, examples=5)
    assert residual(forward.bind(seen_by_server(federation)), toy.trained_on(federation)) < 1e-6


def test_without_shuffling_one_row_of_images_explains_all_epochs(toy: Any) -> None:
    federation = toy.federation(Training(0.3, 3, 2, shuffle=False), examples=5)
    client = federation.clients[0]
    candidate = Candidate(federation.whitening.whiten(client.images)[None], client.labels)
    assert residual(Unroll().bind(seen_by_server(federation)), candidate) < 1e-6


@pytest.mark.parametrize("optimiser", [SGD(), SGD(0.9), Adam(), AdamW()], ids=repr)
def test_other_data_do_not_explain_the_message(toy: Any, optimiser: Optimiser) -> None:
    federation = toy.federation(Training(0.3, 2, 2, optimiser=optimiser), examples=5)
    truth = toy.trained_on(federation)
    other = Candidate(torch.zeros_like(truth.images), truth.labels)
    assert residual(Unroll().bind(seen_by_server(federation)), other) > 0.05
