"""The one training loop against torch's own optimiser."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedglass.core.optimisers import SGD, Adam, AdamW
from fedglass.core.rng import stream
from fedglass.core.tensors import buffers_of
from fedglass.core.types import BatchNorm, Training
from fedglass.fl.local import MeanGradient, Step, clipped, path, schedule, train
from fedglass.models.network import Network


def by_torch(model: nn.Module, inputs: Tensor, targets: Tensor, batches: Any, plan: Training) -> list[Tensor]:
    """Local training as anyone would write it, on a copy in its present mode."""
    model = copy.deepcopy(model)
    made: Any = {SGD: torch.optim.SGD, Adam: torch.optim.Adam, AdamW: torch.optim.AdamW}[type(plan.optimiser)]
    optimiser = made(model.parameters(), lr=plan.lr, **vars(plan.optimiser))
    for batch in batches:
        optimiser.zero_grad()
        logits = model(inputs[batch.rows])
        loss = F.cross_entropy(logits, targets[batch.rows], label_smoothing=plan.label_smoothing)
        loss.backward()  # type: ignore[no-untyped-call]  # torch
        if plan.clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), plan.clip)
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
    for mine, theirs in zip(found, by_torch(model, inputs, targets, batches, plan), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "plan",
    [
        Training(0.3, 2, 2, optimiser=SGD(momentum=0.9)),
        Training(0.3, 2, 2, optimiser=SGD(0.9, dampening=0.4, weight_decay=0.01)),
        Training(0.3, 2, 2, optimiser=SGD(0.9, nesterov=True, weight_decay=0.01)),
        Training(0.3, 2, 2, optimiser=SGD(weight_decay=0.1)),
        Training(0.01, 3, 2, optimiser=Adam()),
        Training(0.01, 3, 2, optimiser=Adam((0.8, 0.95), 1e-4, 0.1)),
        Training(0.01, 3, 2, optimiser=AdamW()),
        Training(0.01, 3, 2, optimiser=AdamW((0.8, 0.95), weight_decay=0.3)),
        Training(0.3, 2, 2, clip=0.5),
        Training(0.3, 2, 2, clip=1e6),
        Training(0.3, 2, 2, label_smoothing=0.2),
        Training(0.3, 2, 2, shuffle=False),
        Training(0.3, batch_size=2, steps=5),
        Training(0.01, batch_size=2, steps=7, optimiser=Adam(), clip=0.5, label_smoothing=0.1, shuffle=False),
    ],
    ids=repr,
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_every_training_is_that_of_torch(toy: Any, plan: Training, dtype: torch.dtype) -> None:
    model = toy.dense().to(dtype)
    network = Network(model, {}, BatchNorm.FROZEN)
    inputs, targets = toy.images(5).to(dtype), torch.tensor([0, 1, 2, 3, 4])
    batches = list(schedule(plan, 5, stream(0, "shuffle")))
    found = train(network, list(model.parameters()), inputs, targets, batches, plan)
    for mine, theirs in zip(found, by_torch(model, inputs, targets, batches, plan), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-6, atol=1e-6 if dtype is torch.float32 else 1e-10)


@pytest.mark.parametrize("most", [0.1, 5.0, 1e6])
def test_clipping_is_that_of_torch(most: float) -> None:
    gradient = [torch.randn(shape, generator=stream(0, "g", *shape)) for shape in ((3, 4), (4,), (2, 2, 2))]
    leaves = [g.clone().requires_grad_() for g in gradient]
    for leaf, g in zip(leaves, gradient, strict=True):
        leaf.grad = g.clone()
    nn.utils.clip_grad_norm_(leaves, most)
    for mine, leaf in zip(clipped(gradient, most), leaves, strict=True):
        torch.testing.assert_close(mine, leaf.grad)


def test_what_a_defence_returns_is_clipped(toy: Any) -> None:
    class Ones:
        def gradient(self, step: Step) -> list[Tensor]:
            return [torch.ones_like(w) for w in step.weights]

    model = toy.dense()
    start = [p.detach() for p in model.parameters()]
    plan = Training(1.0, clip=0.5)
    network = Network(model, {}, BatchNorm.FROZEN)
    found = train(network, start, toy.images(2), torch.zeros(2).long(), schedule(plan, 2, None), plan, Ones())
    moved = torch.cat([(a - b).flatten() for a, b in zip(found, start, strict=True)])
    assert float(moved.norm()) == pytest.approx(0.5, rel=1e-4)


def test_a_zero_gradient_is_clipped_to_zero_and_differentiable() -> None:
    leaf = torch.zeros(3, requires_grad=True)
    (found,) = clipped([leaf * 2], 1.0)
    (back,) = torch.autograd.grad(found.sum(), leaf)
    assert not found.any()
    assert torch.isfinite(back).all()


def test_the_path_ends_where_training_does(toy: Any) -> None:
    model = toy.dense()
    network, start = Network(model, {}, BatchNorm.FROZEN), list(model.parameters())
    plan = Training(0.1, 2, 2, optimiser=SGD(momentum=0.9))
    data = toy.images(4), torch.tensor([0, 1, 2, 3])
    along = list(path(network, start, *data, schedule(plan, 4, None), plan))
    assert [at.state.count for at in along] == [0, 1, 2, 3, 4]
    last = train(network, start, *data, schedule(plan, 4, None), plan)
    assert all(torch.equal(a.detach(), b) for a, b in zip(along[-1].weights, last, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(along[0].weights, start, strict=True))


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


def test_without_shuffling_every_epoch_is_in_file_order() -> None:
    plan = Training(0.1, epochs=3, batch_size=4, shuffle=False)
    generator = stream(3, "x")
    untouched = generator.get_state()
    rows = [batch.rows for batch in schedule(plan, 10, generator)]
    assert rows == [slice(0, 4), slice(4, 8), slice(8, 10)] * 3
    assert torch.equal(generator.get_state(), untouched)


@pytest.mark.parametrize(("steps", "epochs"), [(1, 1), (2, 1), (3, 1), (4, 2), (8, 3), (9, 3)])
def test_a_number_of_steps_cuts_the_last_epoch_short(steps: int, epochs: int) -> None:
    plan, whole = Training(0.1, batch_size=4, steps=steps), Training(0.1, epochs=epochs, batch_size=4)
    cut = list(schedule(plan, 10, stream(3, "x")))
    full = list(schedule(whole, 10, stream(3, "x")))
    assert (len(cut), plan.local_steps(10), plan.passes(10)) == (steps, steps, epochs)
    for mine, theirs in zip(cut, full, strict=False):
        assert (mine.epoch, mine.place) == (theirs.epoch, theirs.place)
        assert torch.equal(torch.arange(10)[mine.rows], torch.arange(10)[theirs.rows])


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
