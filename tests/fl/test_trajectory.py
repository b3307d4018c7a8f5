"""The adjoint of a trajectory against one graph over all its steps."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedglass.core.optimisers import SGD, Adam, AdamW
from fedglass.core.rng import stream
from fedglass.core.tensors import buffers_of
from fedglass.core.types import BatchNorm, Training
from fedglass.fl.local import LocalBatch, schedule
from fedglass.fl.trajectory import Trajectory, TrajectoryMemory, per_epoch
from fedglass.models.network import Network

MEMORIES = [
    TrajectoryMemory(graphs=True),
    TrajectoryMemory(),
    TrajectoryMemory(every=2),
    TrajectoryMemory(every=3),
    TrajectoryMemory(every=100),
]
LR = 0.7


def naive(trajectory: Trajectory, images: Tensor, targets: Tensor) -> list[Tensor]:
    """(w_0 - w_T) / lr, with the whole training in one graph."""
    training = trajectory.training
    weights = [w.detach().clone().requires_grad_() for w in trajectory.start]
    start = weights
    slots: list[list[Tensor | float]] = [[0.0, 0.0] for _ in weights]
    for t, batch in enumerate(trajectory.batches):
        inputs = images[batch.epoch % len(images)][batch.rows]
        labels = targets[batch.epoch] if targets.ndim == 2 and not targets.is_floating_point() else targets
        logits = trajectory.network(weights, inputs)
        loss = F.cross_entropy(logits, labels[batch.rows], label_smoothing=training.label_smoothing)
        gradient = torch.autograd.grad(loss, weights, create_graph=True)
        if training.clip is not None:
            norm = torch.cat([g.flatten() for g in gradient]).norm()
            gradient = tuple(g * (training.clip / (norm + 1e-6)).clamp(max=1.0) for g in gradient)
        weights = [step_by_hand(training, t, w, g, slot) for w, g, slot in zip(weights, gradient, slots, strict=True)]
    return [(s - w) / training.lr for s, w in zip(start, weights, strict=True)]


def step_by_hand(training: Training, t: int, w: Tensor, g: Tensor, slot: list[Any]) -> Tensor:
    """The optimiser's step on one parameter, all of it differentiable; `slot` is what it carries."""
    rule, lr = training.optimiser, training.lr
    if isinstance(rule, SGD):
        d = g + rule.weight_decay * w
        slot[0] = d if t == 0 else rule.momentum * slot[0] + (1 - rule.dampening) * d
        return w - lr * (d + rule.momentum * slot[0] if rule.nesterov else slot[0] if rule.momentum else d)
    assert isinstance(rule, Adam | AdamW)
    one, two = rule.betas
    d = g + rule.weight_decay * w if isinstance(rule, Adam) else g
    kept = w if isinstance(rule, Adam) else w * (1 - lr * rule.weight_decay)
    slot[0] = one * slot[0] + (1 - one) * d
    slot[1] = two * slot[1] + (1 - two) * d**2
    mean, square = slot[0] / (1 - one ** (t + 1)), slot[1] / (1 - two ** (t + 1))
    return kept - lr * mean / (square.sqrt() + rule.eps)


PLAIN = Training(LR)


def trajectory_of(
    model: nn.Module,
    statistics: BatchNorm,
    batches: list[LocalBatch],
    memory: TrajectoryMemory,
    training: Training = PLAIN,
) -> Trajectory:
    network = Network(model, buffers_of(model), statistics)
    start = [p.detach().clone() for p in model.parameters()]
    return Trajectory(network, start, batches, training, memory)


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
def test_in_double_precision_both_agree_to_rounding(toy: Any, memory: TrajectoryMemory, statistics: BatchNorm) -> None:
    batches = list(schedule(Training(LR, 3, 2), 5, None))  # the last batch of an epoch is short
    trajectory = trajectory_of(toy.normalised().double(), statistics, batches, memory)
    compare(trajectory, examples(toy, 3, torch.float64), HARD, 1e-10)


@pytest.mark.parametrize("memory", MEMORIES, ids=repr)
def test_in_single_precision_both_agree_to_1e_5(toy: Any, memory: TrajectoryMemory) -> None:
    batches = list(schedule(Training(LR, 3, 2), 5, None))
    compare(trajectory_of(toy.dense(), BatchNorm.FROZEN, batches, memory), examples(toy, 3, torch.float32), HARD, 1e-5)


@pytest.mark.parametrize("memory", MEMORIES, ids=repr)
@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("labels", ["hard", "soft", "per epoch"])
def test_all_kinds_of_labels_and_shared_images(toy: Any, memory: TrajectoryMemory, shared: bool, labels: str) -> None:
    soft = torch.randn(5, 5, generator=stream(0, "soft"), dtype=torch.float64).softmax(-1)
    targets = {"hard": HARD, "soft": soft, "per epoch": PER_EPOCH}[labels]
    batches = list(schedule(Training(LR, 3, 2), 5, None))
    trajectory = trajectory_of(toy.dense().double(), BatchNorm.FROZEN, batches, memory)
    compare(trajectory, examples(toy, 1 if shared else 3, torch.float64), targets, 1e-10)


@pytest.mark.parametrize("memory", MEMORIES, ids=repr)
def test_shuffled_batches(toy: Any, memory: TrajectoryMemory) -> None:
    batches = list(schedule(Training(LR, 2, 2), 5, stream(1, "shuffle")))
    trajectory = trajectory_of(toy.dense().double(), BatchNorm.FROZEN, batches, memory)
    compare(trajectory, examples(toy, 1, torch.float64), HARD, 1e-10)


def test_images_that_are_not_contiguous(toy: Any) -> None:
    batches = list(schedule(Training(LR, 2, 2), 5, None))
    trajectory = trajectory_of(toy.dense().double(), BatchNorm.FROZEN, batches, TrajectoryMemory(every=2))
    images = examples(toy, 2, torch.float64).transpose(-1, -2)
    assert not images.is_contiguous()
    compare(trajectory, images, HARD, 1e-10)


@pytest.mark.parametrize("memory", MEMORIES, ids=repr)
def test_unused_parameters_do_not_disturb(toy: Any, memory: TrajectoryMemory) -> None:
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
    trajectory = trajectory_of(toy.dense().double(), BatchNorm.FROZEN, batches, TrajectoryMemory())
    images = examples(toy, 2, torch.float64).requires_grad_()
    fast, slow = trajectory.gradient_sum(images, HARD), naive(trajectory, images, HARD)
    one, other = (torch.autograd.grad(m[1].square().sum(), images)[0] for m in (fast, slow))
    torch.testing.assert_close(one, other)


@pytest.mark.parametrize("memory", MEMORIES, ids=repr)
def test_nothing_given_is_changed(toy: Any, memory: TrajectoryMemory) -> None:
    batches = list(schedule(Training(LR, 2, 2), 5, None))
    trajectory = trajectory_of(toy.dense(), BatchNorm.FROZEN, batches, memory)
    images = examples(toy, 2, torch.float32).requires_grad_()
    kept = [t.detach().clone() for t in (*trajectory.start, images)]
    loss_of(trajectory.gradient_sum(images, HARD)).backward()  # type: ignore[no-untyped-call]  # torch
    assert all(map(torch.equal, kept, (*trajectory.start, images.detach())))
    assert all(w.grad is None for w in trajectory.start)


TRAININGS = [
    Training(LR, 3, 2, optimiser=SGD(weight_decay=0.1)),
    Training(LR, 3, 2, optimiser=SGD(momentum=0.9)),
    Training(LR, 3, 2, optimiser=SGD(0.8, dampening=0.3, weight_decay=0.05)),
    Training(LR, 3, 2, optimiser=SGD(0.8, nesterov=True, weight_decay=0.05)),
    Training(0.05, 3, 2, optimiser=Adam()),
    Training(0.05, 3, 2, optimiser=Adam((0.6, 0.9), 1e-4, 0.1)),
    Training(0.05, 3, 2, optimiser=AdamW(weight_decay=0.1)),
    Training(LR, 3, 2, clip=0.3),
    Training(LR, 3, 2, clip=1e6),
    Training(LR, 3, 2, label_smoothing=0.2),
    Training(LR, batch_size=2, steps=7, shuffle=False),
    Training(0.05, batch_size=2, steps=8, optimiser=Adam(), clip=0.3, label_smoothing=0.1),
]


@pytest.mark.parametrize("labels", ["hard", "soft", "per epoch"])
@pytest.mark.parametrize("memory", MEMORIES, ids=repr)
@pytest.mark.parametrize("training", TRAININGS, ids=repr)
def test_the_adjoint_of_every_training(toy: Any, training: Training, memory: TrajectoryMemory, labels: str) -> None:
    soft = torch.randn(5, 5, generator=stream(0, "soft"), dtype=torch.float64).softmax(-1)
    targets = {"hard": HARD, "soft": soft, "per epoch": PER_EPOCH}[labels]
    batches = list(schedule(training, 5, None))
    trajectory = trajectory_of(toy.dense().double(), BatchNorm.FROZEN, batches, memory, training)
    compare(trajectory, examples(toy, 3, torch.float64), targets, 1e-7)


@pytest.mark.parametrize("statistics", list(BatchNorm))
@pytest.mark.parametrize("training", TRAININGS, ids=repr)
def test_the_adjoint_of_every_training_through_normalisation(
    toy: Any, training: Training, statistics: BatchNorm
) -> None:
    model = toy.normalised().double()
    model[0].bias = None  # before a normalisation its gradient is nothing but rounding, of which Adam makes a step
    batches = list(schedule(training, 5, stream(1, "shuffle")))
    trajectory = trajectory_of(model, statistics, batches, TrajectoryMemory(every=2), training)
    compare(trajectory, examples(toy, 1, torch.float64), HARD, 1e-7)


@pytest.mark.parametrize("training", [t for t in TRAININGS if isinstance(t.optimiser, SGD)], ids=repr)
def test_in_single_precision_every_sgd_agrees_to_1e_5(toy: Any, training: Training) -> None:
    batches = list(schedule(training, 5, None))
    trajectory = trajectory_of(toy.dense(), BatchNorm.FROZEN, batches, TrajectoryMemory(), training)
    compare(trajectory, examples(toy, 3, torch.float32), HARD, 1e-5)


@pytest.mark.parametrize("training", [t for t in TRAININGS if not isinstance(t.optimiser, SGD)], ids=repr)
def test_in_single_precision_adam_is_as_good_as_its_rounding(toy: Any, training: Training) -> None:
    """What its moments nearly cancel is as large as in double precision, up to a thousand times the rounding."""
    found = []
    for dtype in (torch.float32, torch.float64):
        trajectory = trajectory_of(
            toy.dense().to(dtype), BatchNorm.FROZEN, list(schedule(training, 5, None)), TrajectoryMemory(), training
        )
        images = examples(toy, 3, dtype).requires_grad_()
        found += torch.autograd.grad(loss_of(trajectory.gradient_sum(images, HARD)), images)
    single, double = found
    assert (single.double() - double).norm() <= 1e-4 * double.norm()


@pytest.mark.parametrize("memory", MEMORIES, ids=repr)
@pytest.mark.parametrize("optimiser", [Adam(), AdamW()], ids=repr)
def test_dead_units_leave_the_adjoint_of_adam_finite(
    toy: Any, optimiser: Adam | AdamW, memory: TrajectoryMemory
) -> None:
    """Units that never answer have gradient and moments of exactly zero; the others are as without them."""
    model = toy.dense(nn.ReLU)
    with torch.no_grad():
        model[1].bias[:16] = -100.0
    training = Training(0.01, 2, 2, optimiser=optimiser)
    trajectory = trajectory_of(model, BatchNorm.FROZEN, list(schedule(training, 5, None)), memory, training)
    images = examples(toy, 2, torch.float32).requires_grad_()
    found = trajectory.gradient_sum(images, HARD)
    (gradient,) = torch.autograd.grad(loss_of(found), images)
    assert torch.isfinite(gradient).all()
    assert gradient.any()
    assert not found[1][:16].any() or isinstance(optimiser, AdamW)


def as_before(trajectory: Trajectory, images: Tensor, targets: Tensor) -> tuple[list[Tensor], Tensor]:
    """Plain SGD's message and the gradient of `loss_of` by the formula a - lr H a, written out on its own."""
    lr, network, waypoints = trajectory.training.lr, trajectory.network, [list(trajectory.start)]

    def gradient(t: int, inputs: Tensor, leaves: list[Tensor], again: bool) -> tuple[Tensor, ...]:
        labels = (targets[trajectory.batches[t].epoch] if per_epoch(targets) else targets)[trajectory.batches[t].rows]
        return torch.autograd.grad(F.cross_entropy(network(leaves, inputs), labels), leaves, create_graph=again)

    def at(t: int) -> tuple[Tensor, list[Tensor]]:
        batch = trajectory.batches[t]
        inputs = images[batch.epoch % len(images)][batch.rows].detach().requires_grad_()
        return inputs, [w.detach().requires_grad_() for w in waypoints[t]]

    for t in range(len(trajectory.batches)):
        found = gradient(t, *at(t), False)
        waypoints.append([torch.sub(w, g, alpha=lr) for w, g in zip(waypoints[t], found, strict=True)])
    message = [((s - w) / lr).requires_grad_() for s, w in zip(waypoints[0], waypoints[-1], strict=True)]
    adjoint = [-g / lr for g in torch.autograd.grad(loss_of(message), message)]
    total = torch.zeros_like(images)
    for t in reversed(range(len(trajectory.batches))):
        inputs, leaves = at(t)
        parts = torch.autograd.grad(gradient(t, inputs, leaves, True), [*leaves, inputs], adjoint)
        row, rows = trajectory.batches[t].epoch % len(images), trajectory.batches[t].rows
        total[row, rows] = torch.sub(total[row, rows], parts[-1], alpha=lr)
        adjoint = [torch.sub(a, h, alpha=lr) for a, h in zip(adjoint, parts, strict=False)]
    return message, total


@pytest.mark.parametrize("memory", MEMORIES, ids=repr)
@pytest.mark.parametrize("targets", [HARD, PER_EPOCH], ids=["hard", "per epoch"])
def test_plain_sgd_is_the_plain_formula_to_the_last_bit(toy: Any, memory: TrajectoryMemory, targets: Tensor) -> None:
    training = Training(LR, 3, 2)
    batches = list(schedule(training, 5, None))
    trajectory = trajectory_of(toy.dense(), BatchNorm.FROZEN, batches, memory, training)
    images = examples(toy, 3, torch.float32).requires_grad_()
    found = trajectory.gradient_sum(images, targets)
    (gradient,) = torch.autograd.grad(loss_of(found), images)
    message, expected = as_before(trajectory, images.detach(), targets)
    assert all(torch.equal(a, b) for a, b in zip(found, message, strict=True))
    assert torch.equal(gradient, expected)
