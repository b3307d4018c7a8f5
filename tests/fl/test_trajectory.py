"""The adjoint of a trajectory against one graph over all its steps."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedglass.core.params import buffers_of
from fedglass.core.rng import stream
from fedglass.core.types import BatchNorm, Training
from fedglass.fl.local import Batch, schedule
from fedglass.fl.trajectory import Memory, Trajectory
from fedglass.models.network import Network

MEMORIES = [Memory(graphs=True), Memory(), Memory(every=2), Memory(every=3), Memory(every=100)]
LR = 0.7


def naive(trajectory: Trajectory, images: Tensor, targets: Tensor) -> list[Tensor]:
    """(w_0 - w_T) / lr, with the whole training in one graph."""
    weights = [w.detach().clone().requires_grad_() for w in trajectory.start]
    start = weights
    for batch in trajectory.batches:
        inputs = images[batch.epoch % len(images)][batch.rows]
        labels = targets[batch.epoch] if targets.ndim == 2 and not targets.is_floating_point() else targets
        loss = F.cross_entropy(trajectory.network(weights, inputs), labels[batch.rows])
        gradient = torch.autograd.grad(loss, weights, create_graph=True)
        weights = [w - trajectory.training.lr * g for w, g in zip(weights, gradient, strict=True)]
    return [(s - w) / trajectory.training.lr for s, w in zip(start, weights, strict=True)]


def trajectory_of(model: nn.Module, statistics: BatchNorm, batches: list[Batch], memory: Memory) -> Trajectory:
    network = Network(model, buffers_of(model), statistics)
    start = [p.detach().clone() for p in model.parameters()]
    return Trajectory(network, start, batches, Training(LR), memory)


def loss_of(message: Any) -> Tensor:
    """A loss with another weight for every entry, so that no direction is hidden."""
    scaled = [(m - 0.1) * torch.linspace(0.5, 2, m.numel(), dtype=m.dtype).view_as(m) for m in message]
    return torch.stack([part.square().sum() for part in scaled]).sum()


def compare(trajectory: Trajectory, images: Tensor, targets: Tensor, rtol: float) -> None:
    unknowns = [images] + [targets] * targets.is_floating_point()
    for u in unknowns:
        u.requires_grad_()
    slow, fast = naive(trajectory, images, targets), trajectory.gradient_sum(images, targets)
    # Relative to the whole message: a bias before a normalisation has no gradient of its own.
    size = torch.cat([b.flatten() for b in slow]).norm()
    assert all((a - b).norm() <= rtol * size for a, b in zip(fast, slow, strict=True))
    for a, b in zip(
        torch.autograd.grad(loss_of(fast), unknowns), torch.autograd.grad(loss_of(slow), unknowns), strict=True
    ):
        assert b.norm() > 0
        assert (a - b).norm() <= rtol * b.norm()


def examples(toy: Any, epochs: int, dtype: torch.dtype) -> Tensor:
    images: Tensor = torch.stack([toy.images(5, "epoch", e) for e in range(epochs)]).to(dtype) * 2 - 1
    return images


HARD = torch.tensor([0, 1, 2, 3, 1])
PER_EPOCH = torch.tensor([[0, 1, 2, 3, 1], [1, 3, 0, 2, 1], [4, 4, 0, 1, 2]])


@pytest.mark.parametrize("memory", MEMORIES, ids=repr)
@pytest.mark.parametrize("statistics", list(BatchNorm))
def test_in_double_precision_both_agree_to_rounding(toy: Any, memory: Memory, statistics: BatchNorm) -> None:
    batches = list(schedule(Training(LR, 3, 2), 5, None))  # the last batch of an epoch is short
    trajectory = trajectory_of(toy.normalised().double(), statistics, batches, memory)
    compare(trajectory, examples(toy, 3, torch.float64), HARD, 1e-10)


@pytest.mark.parametrize("memory", MEMORIES, ids=repr)
def test_in_single_precision_both_agree_to_1e_5(toy: Any, memory: Memory) -> None:
    batches = list(schedule(Training(LR, 3, 2), 5, None))
    compare(trajectory_of(toy.dense(), BatchNorm.FROZEN, batches, memory), examples(toy, 3, torch.float32), HARD, 1e-5)


@pytest.mark.parametrize("memory", MEMORIES, ids=repr)
@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("labels", ["hard", "soft", "per epoch"])
def test_all_kinds_of_labels_and_shared_images(toy: Any, memory: Memory, shared: bool, labels: str) -> None:
    soft = torch.randn(5, 5, generator=stream(0, "soft"), dtype=torch.float64).softmax(-1)
    targets = {"hard": HARD, "soft": soft, "per epoch": PER_EPOCH}[labels]
    batches = list(schedule(Training(LR, 3, 2), 5, None))
    trajectory = trajectory_of(toy.dense().double(), BatchNorm.FROZEN, batches, memory)
    compare(trajectory, examples(toy, 1 if shared else 3, torch.float64), targets, 1e-10)


@pytest.mark.parametrize("memory", MEMORIES, ids=repr)
def test_shuffled_batches(toy: Any, memory: Memory) -> None:
    batches = list(schedule(Training(LR, 2, 2), 5, stream(1, "shuffle")))
    trajectory = trajectory_of(toy.dense().double(), BatchNorm.FROZEN, batches, memory)
    compare(trajectory, examples(toy, 1, torch.float64), HARD, 1e-10)


def test_images_that_are_not_contiguous(toy: Any) -> None:
    batches = list(schedule(Training(LR, 2, 2), 5, None))
    trajectory = trajectory_of(toy.dense().double(), BatchNorm.FROZEN, batches, Memory(every=2))
    images = examples(toy, 2, torch.float64).transpose(-1, -2)
    assert not images.is_contiguous()
    compare(trajectory, images, HARD, 1e-10)


@pytest.mark.parametrize("memory", MEMORIES, ids=repr)
def test_unused_parameters_do_not_disturb(toy: Any, memory: Memory) -> None:
    class Wasteful(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.idle, self.used = nn.Linear(3, 3), toy.dense()

        def forward(self, x: Tensor) -> Tensor:
            return self.used(x)  # type: ignore[no-any-return]  # of Any

    batches = list(schedule(Training(LR, 2, 2), 5, None))
    images = examples(toy, 2, torch.float64).requires_grad_()
    wasteful = trajectory_of(Wasteful().double(), BatchNorm.FROZEN, batches, memory)
    plain = trajectory_of(toy.dense().double(), BatchNorm.FROZEN, batches, memory)
    found = wasteful.gradient_sum(images, HARD)
    assert not found[0].any()
    one, other = (torch.autograd.grad(loss_of(m[-4:]), images)[0] for m in (found, plain.gradient_sum(images, HARD)))
    torch.testing.assert_close(one, other)


def test_only_a_part_of_the_message_may_be_used(toy: Any) -> None:
    batches = list(schedule(Training(LR, 2, 2), 5, None))
    trajectory = trajectory_of(toy.dense().double(), BatchNorm.FROZEN, batches, Memory())
    images = examples(toy, 2, torch.float64).requires_grad_()
    fast, slow = trajectory.gradient_sum(images, HARD), naive(trajectory, images, HARD)
    one, other = (torch.autograd.grad(m[1].square().sum(), images)[0] for m in (fast, slow))
    torch.testing.assert_close(one, other)


@pytest.mark.parametrize("memory", MEMORIES, ids=repr)
def test_nothing_given_is_changed(toy: Any, memory: Memory) -> None:
    batches = list(schedule(Training(LR, 2, 2), 5, None))
    trajectory = trajectory_of(toy.dense(), BatchNorm.FROZEN, batches, memory)
    images = examples(toy, 2, torch.float32).requires_grad_()
    kept = [t.detach().clone() for t in (*trajectory.start, images)]
    loss_of(trajectory.gradient_sum(images, HARD)).backward()  # type: ignore[no-untyped-call]  # torch
    assert all(map(torch.equal, kept, (*trajectory.start, images.detach())))
    assert all(w.grad is None for w in trajectory.start)
