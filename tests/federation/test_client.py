"""A client's part of a round, and what is refused as a client."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import nn

from fedglass.core.errors import DataError
from fedglass.core.tensors import Update, buffers_of, weights_of
from fedglass.core.types import BatchNorm, Training, Whitening
from fedglass.federation.client import Client, TrainRequest, train_client
from fedglass.federation.transcript import Message
from fedglass.fl.release import Outgoing

PLAIN = Whitening((0.0,), (1.0,))


def call_of(model: nn.Module, training: Training, seed: int = 0, round_index: int = 0) -> TrainRequest:
    return TrainRequest(model, weights_of(model), buffers_of(model), training, PLAIN, seed, round_index)


@pytest.mark.parametrize(
    ("images", "labels", "said"),
    [
        (torch.zeros(0, 1, 2, 2), torch.zeros(0).long(), "at least one example"),
        (torch.zeros(2, 2, 2), torch.zeros(2).long(), "shape"),
        (torch.zeros(2, 1, 2, 2), torch.zeros(3).long(), "one int64 label for each of the 2 images"),
        (torch.zeros(2, 1, 2, 2), torch.zeros(2), "type torch.float32"),
        (torch.full((2, 1, 2, 2), 255.0), torch.zeros(2).long(), r"in \[0, 1\], got 255 to 255"),
        (torch.full((2, 1, 2, 2), torch.nan), torch.zeros(2).long(), "finite"),
    ],
)
def test_bad_examples_are_refused(images: torch.Tensor, labels: torch.Tensor, said: str) -> None:
    with pytest.raises(DataError, match=f"Client 'x': .*{said}"):
        Client("x", images, labels)


def test_the_update_is_after_minus_before(toy: Any) -> None:
    client, model = toy.client(), toy.dense()
    message = train_client(client, call_of(model, Training(0.1)))
    loss = nn.functional.cross_entropy(model(client.images), client.labels)
    for (name, _), g in zip(model.named_parameters(), torch.autograd.grad(loss, list(model.parameters())), strict=True):
        torch.testing.assert_close(message.update[name], -0.1 * g, rtol=1e-4, atol=1e-6)


def test_inputs_are_whitened(toy: Any, same: Callable[..., bool]) -> None:
    model, whitening = toy.dense(), Whitening((0.4,), (0.3,))
    one = train_client(toy.client(), replace(call_of(model, Training(0.1)), whitening=whitening))
    assert not same(one.update, train_client(toy.client(), call_of(model, Training(0.1))).update)


@pytest.mark.parametrize("change", [{"seed": 1}, {"round": 1}])
def test_seed_and_round_reshuffle(toy: Any, same: Callable[..., bool], change: dict[str, Any]) -> None:
    call = call_of(toy.dense(), Training(0.1, 2, 1))
    one, again, other = (train_client(toy.client(), c) for c in (call, call, replace(call, **change)))
    assert same(one.update, again.update)
    assert not same(one.update, other.update)


def test_batch_labels_are_those_of_every_step(toy: Any) -> None:
    client = toy.client(examples=5)
    federation = replace(toy.federation(Training(0.1, 3, 2)), clients=[client])
    told_labels = federation.truths().batch_labels[0, client.name]
    assert [len(batch) for batch in told_labels] == [2, 2, 1] * 3
    for epoch in range(3):
        told = sum(told_labels[3 * epoch : 3 * epoch + 3], ())
        assert sorted(told) == sorted(client.labels.tolist())


@dataclass(frozen=True)
class Half:
    def release(self, leaving: Outgoing) -> Update:
        return {name: tensor / 2 for name, tensor in reversed(list(leaving.update.items()))}


def test_a_release_changes_what_leaves(toy: Any) -> None:
    call = call_of(toy.dense(), Training(0.1))
    plain, halved = train_client(toy.client(), call), train_client(toy.client(release=Half()), call)
    assert all(torch.equal(halved.update[name], plain.update[name] / 2) for name in plain.update)


def statistics(message: Message) -> torch.Tensor:
    return message.buffers["1.running_mean"]


def test_frozen_statistics_stay(toy: Any, same: Callable[..., bool]) -> None:
    call = call_of(toy.normalised(), Training(0.1, 2, 2))
    assert same(train_client(toy.client(), call).buffers, call.buffers)


def test_batch_statistics_are_those_of_a_training_pass(toy: Any, same: Callable[..., bool]) -> None:
    model, client = toy.normalised(), toy.client()
    call = call_of(model, Training(0.1, batch_norm=BatchNorm.BATCH))
    before = {name: tensor.clone() for name, tensor in call.buffers.items()}
    message = train_client(client, call)
    assert same(call.buffers, before)
    trained = copy.deepcopy(model).train()
    with torch.no_grad():
        trained(client.images)
    torch.testing.assert_close(statistics(message), dict(trained.named_buffers())["1.running_mean"])
    assert message.buffers["1.num_batches_tracked"] == 1


def test_statistics_are_those_that_torch_leaves_behind(toy: Any) -> None:
    """Of a training loop as anybody writes it."""
    model, client = toy.normalised(), toy.client()
    training = Training(0.1, epochs=2, batch_size=2, batch_norm=BatchNorm.BATCH, shuffle=False)
    message = train_client(client, call_of(model, training))
    plain = copy.deepcopy(model).train()
    optimiser = torch.optim.SGD(plain.parameters(), 0.1)
    for _ in range(2):
        for rows in training.batches(len(client.labels)):
            optimiser.zero_grad()
            nn.functional.cross_entropy(plain(client.images[rows]), client.labels[rows]).backward()
            optimiser.step()
    for name, tensor in plain.named_buffers():
        torch.testing.assert_close(message.buffers[name], tensor)


def test_statistics_are_gathered_without_global_random_numbers(toy: Any, same: Callable[..., bool]) -> None:
    model = nn.Sequential(nn.Dropout(0.5), *toy.normalised())
    call = call_of(model, Training(0.1, batch_norm=BatchNorm.BATCH))
    state = torch.random.get_rng_state()
    one, other = train_client(toy.client(), call), train_client(toy.client(), call)
    assert same(one.buffers, other.buffers)
    assert same(state, torch.random.get_rng_state())
