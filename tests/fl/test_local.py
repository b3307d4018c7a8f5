"""The one training loop against torch's own optimiser."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedglass.core.params import buffers_of
from fedglass.core.rng import stream
from fedglass.core.types import BatchNorm, Training
from fedglass.fl.local import MeanGradient, Step, schedule, train
from fedglass.models.network import Network


def by_torch(model: nn.Module, inputs: Tensor, targets: Tensor, batches: Any, lr: float) -> list[Tensor]:
    """Plain SGD as anyone would write it, on a copy in its present mode."""
    model = copy.deepcopy(model)
    optimiser = torch.optim.SGD(model.parameters(), lr=lr)
    for batch in batches:
        optimiser.zero_grad()
        loss = F.cross_entropy(model(inputs[batch.rows]), targets[batch.rows])
        loss.backward()  # type: ignore[no-untyped-call]  # torch
        optimiser.step()
    return [p.detach() for p in model.parameters()]


@pytest.mark.parametrize(("epochs", "size"), [(1, None), (1, 2), (3, 2), (2, 3), (2, 1)])
@pytest.mark.parametrize("statistics", list(BatchNorm))
def test_training_is_that_of_torch(toy: Any, epochs: int, size: int | None, statistics: BatchNorm) -> None:
    model = toy.normalised().train(statistics is BatchNorm.BATCH)
    network = Network(model, buffers_of(model), statistics)
    inputs, targets = toy.images(5), torch.tensor([0, 1, 2, 3, 4])
    plan = Training(0.3, epochs, size, statistics)
    batches = list(schedule(plan, 5, stream(0, "shuffle")))
    start = [p.detach() for p in model.parameters()]
    found = train(network, start, inputs, targets, batches, plan)
    for mine, theirs in zip(found, by_torch(model, inputs, targets, batches, plan.lr), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-6)


def test_training_changes_neither_start_nor_data(toy: Any) -> None:
    model = toy.dense()
    network = Network(model, {}, BatchNorm.FROZEN)
    start = [p.detach().clone() for p in model.parameters()]
    inputs, targets = toy.images(4), torch.tensor([0, 1, 2, 3])
    kept = [t.clone() for t in (*start, inputs, targets)]
    found = train(network, start, inputs, targets, schedule(Training(0.1, 2, 3), 4, None), Training(0.1))
    assert all(map(torch.equal, kept, (*start, inputs, targets)))
    assert not any(t.requires_grad for t in found)


def test_fedsgd_is_one_step_along_the_gradient(toy: Any) -> None:
    model = toy.dense()
    network = Network(model, {}, BatchNorm.FROZEN)
    start = [p.detach().clone().requires_grad_() for p in model.parameters()]
    inputs, targets = toy.images(4), torch.tensor([0, 1, 2, 3])
    gradient = torch.autograd.grad(F.cross_entropy(model(inputs), targets), list(model.parameters()))
    found = train(network, start, inputs, targets, schedule(Training(0.1), 4, None), Training(0.1))
    for w, g, after in zip(start, gradient, found, strict=True):
        torch.testing.assert_close(after, w.detach() - 0.1 * g)


def test_every_epoch_is_a_new_shuffle_of_all_examples() -> None:
    plan = Training(0.1, epochs=6, batch_size=4)
    epochs: list[list[int]] = [[] for _ in range(6)]
    sizes: list[int] = []
    for batch in schedule(plan, 10, stream(3, "x")):
        rows = batch.rows
        assert isinstance(rows, Tensor)
        epochs[batch.epoch] += rows.tolist()
        sizes.append(len(rows))
    assert all(sorted(order) == list(range(10)) for order in epochs)
    assert len({tuple(order) for order in epochs}) == 6
    assert sizes == [4, 4, 2] * 6


def test_the_rule_decides_the_step(toy: Any) -> None:
    class Ones:
        def gradient(self, step: Step) -> list[Tensor]:
            return [torch.ones_like(w) for w in step.weights]

    model = toy.dense()
    start = [p.detach() for p in model.parameters()]
    network = Network(model, {}, BatchNorm.FROZEN)
    plan = Training(0.5, 3, 2)
    found = train(network, start, toy.images(4), torch.zeros(4).long(), schedule(plan, 4, None), plan, Ones())
    for w, after in zip(start, found, strict=True):
        torch.testing.assert_close(after, w - 0.5 * 6)


def test_a_parameter_that_is_not_used_has_gradient_zero(toy: Any) -> None:
    class Wasteful(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.idle, self.used = nn.Linear(3, 3), toy.dense()

        def forward(self, x: Tensor) -> Tensor:
            return self.used(x)  # type: ignore[no-any-return]  # of Any

    network = Network(Wasteful(), {}, BatchNorm.FROZEN)
    weights = [p.detach().clone().requires_grad_() for p in Wasteful().parameters()]
    found = MeanGradient().gradient(Step(network, weights, toy.images(2), torch.tensor([0, 1])))
    zero = {name: not bool(g.any()) for name, g in zip(network.names, found, strict=True)}
    assert zero == {name: name.startswith("idle") for name in network.names}


def test_the_shuffle_needs_no_global_numbers(same: Callable[..., bool]) -> None:
    state = torch.random.get_rng_state()
    list(schedule(Training(0.1, 3, 2), 10, stream(3, "x")))
    assert same(state, torch.random.get_rng_state())
