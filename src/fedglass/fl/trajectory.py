"""The gradient of a local training with respect to its data, without one graph over all its steps.

Local training takes weights and optimiser state to w_{t+1}, s_{t+1} = step(w_t, s_t, g(w_t, x_t)), t = 0..T-1, and its
message is (w_0 - w_T) / lr: for plain SGD, which has no state, the sum of its gradients. For a loss with adjoint
a_T = dL/dw_T the optimiser pulls a_{t+1} back to the gradient, to b_t, and what reaches the weights through it is

    a_t = (direct part) + H_t b_t                  H_t: the Hessian of step t's loss in the weights
    dL/dx_t = d/dx <g(w_t, x_t), b_t>

Plain SGD has b_t = -lr a_{t+1} and the direct part a_{t+1}. One double backward per step gives both. Memory holds the
trajectory of weights and states, or only every k-th of them, instead of the activations of all steps. `fit` chooses the
fastest such `Memory` that stays within a budget.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from fedglass.core.errors import UsageError
from fedglass.core.optimisers import Adjoint, Move
from fedglass.core.types import Training
from fedglass.fl.local import GradientFn, LocalBatch, MeanGradient, Step, Waypoint, advance, begin, local_gradient
from fedglass.models.network import Network

MIB = 2**20


@dataclass(frozen=True)
class TrajectoryMemory:
    """The parts of a trajectory that the forward pass stores for the backward pass.

    Weights and optimiser state of every `every`-th step are stored and the others computed again. With `graphs`, which
    needs `every=1`, each step's own graph is stored too, so that nothing is computed twice.
    """

    every: int = 1
    graphs: bool = False


@dataclass(frozen=True, eq=False)
class Trajectory:
    """A local training with a message that is differentiable in its images and in soft targets."""

    network: Network
    start: Sequence[Tensor]
    batches: Sequence[LocalBatch]
    training: Training
    memory: TrajectoryMemory = TrajectoryMemory()
    rule: GradientFn = field(default_factory=MeanGradient)

    def gradient_sum(self, images: Tensor, targets: Tensor) -> tuple[Tensor, ...]:
        """Return (w_0 - w_T) / lr, under plain SGD the sum of the gradients.

        # images (epochs or 1, n, c, h, w), targets (n,), (n, classes) or (epochs, n)
        """
        gradients: tuple[Tensor, ...] = _Simulate.apply(self, images, targets)  # type: ignore[no-untyped-call] # torch
        return gradients

    def step(self, t: int, weights: Sequence[Tensor], images: Tensor, targets: Tensor, second: bool) -> Step:
        """Return step t, ready to be differentiated once, or twice if `second`."""
        batch = self.batches[t]
        epoch = batch.epoch % images.shape[0]  # where the epochs share their images there is one row of them
        labels_of_epoch = targets[batch.epoch] if per_epoch(targets) else targets
        inputs, labels = images[epoch, batch.rows].detach(), labels_of_epoch[batch.rows].detach()
        if second:
            inputs.requires_grad_()
            labels.requires_grad_(labels.is_floating_point())
        smoothing = self.training.label_smoothing
        return Step(self.network, weights, inputs, labels, differentiable=second, smoothing=smoothing)


def per_epoch(targets: Tensor) -> bool:
    """Return True for class indices in a separate order for each epoch.  # (epochs, n)"""
    return targets.ndim == 2 and not targets.is_floating_point()


class _Simulate(torch.autograd.Function):
    """Trajectory.gradient_sum as one node of the attack's graph."""

    @staticmethod
    def forward(ctx: Any, trajectory: Trajectory, images: Tensor, targets: Tensor) -> tuple[Tensor, ...]:
        ctx.run = run = _Run(trajectory, images.detach(), targets.detach())
        last = run.forward()
        lr = trajectory.training.lr
        return tuple((s - w) / lr for s, w in zip(trajectory.start, last, strict=True))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, Tensor, Tensor | None]:
        run: _Run = ctx.run
        to_images, to_targets = run.backward([-g / run.trajectory.training.lr for g in gradients])
        return None, to_images, to_targets


StepTaken = tuple[Waypoint, Step, Sequence[Tensor]]
"""A step of the trajectory: where it began, the step, and the gradient that it moved along."""


@dataclass(eq=False)
class _Run:
    """One forward and backward pass along a trajectory."""

    trajectory: Trajectory
    images: Tensor
    targets: Tensor
    waypoints: dict[int, Waypoint] = field(default_factory=dict)
    graphs: dict[int, StepTaken] = field(default_factory=dict)

    def forward(self) -> Sequence[Tensor]:
        """Return the weights at the end; fill `waypoints` and `graphs` on the way."""
        at = begin(self.trajectory.training, self.trajectory.start)
        for t in range(len(self.trajectory.batches)):
            taken = self._take(t, at, second=self.trajectory.memory.graphs)
            if self.trajectory.memory.graphs:
                self.graphs[t] = taken
            elif t % self.trajectory.memory.every == 0:
                self.waypoints[t] = at
            at = advance(self.trajectory.training, at, taken[2])
        return at.weights

    def backward(self, last: Sequence[Tensor]) -> tuple[Tensor, Tensor | None]:
        """Return dL/d(images) and, for soft targets, dL/d(targets), from dL/dw_T."""
        to_images = torch.zeros_like(self.images)
        to_targets = torch.zeros_like(self.targets) if self.targets.is_floating_point() else None
        optimiser, lr = self.trajectory.training.optimiser, self.trajectory.training.lr
        adjoint = Adjoint(last, optimiser.init(last).slots)  # no loss depends on the last state
        for t, (at, step, gradient) in self._taken_backward():
            before, to_gradient, scale = optimiser.pull_back(Move(at.weights, gradient, at.state, lr), adjoint)
            derivatives = _through(step, gradient, to_gradient)
            n = len(at.weights)
            batch = self.trajectory.batches[t]
            _add(to_images[batch.epoch % len(to_images)], batch.rows, derivatives[n], scale)
            if to_targets is not None:
                _add(to_targets, batch.rows, derivatives[n + 1], scale)
            weights = [
                a if h is None else torch.add(a, h, alpha=scale)
                for a, h in zip(before.weights, derivatives, strict=False)
            ]
            adjoint = Adjoint(weights, before.slots)
        return to_images, to_targets

    def _take(self, t: int, at: Waypoint, second: bool) -> StepTaken:
        step = self.trajectory.step(t, at.weights, self.images, self.targets, second)
        with torch.enable_grad():
            return at, step, local_gradient(self.trajectory.rule, step, self.trajectory.training.clip)

    def _taken_backward(self) -> Iterator[tuple[int, StepTaken]]:
        """Yield each step with its twice differentiable gradient, from the last to the first."""
        steps, every = len(self.trajectory.batches), self.trajectory.memory.every
        if self.trajectory.memory.graphs:
            for t in reversed(range(steps)):
                yield t, self.graphs.pop(t)
            return
        for first in reversed(range(0, steps, every)):
            waypoints = self._recomputed(first, min(first + every, steps))
            for t in reversed(range(first, first + len(waypoints))):
                yield t, self._take(t, waypoints.pop(), second=True)

    def _recomputed(self, first: int, stop: int) -> list[Waypoint]:
        """Return the waypoints at the steps from `first` to before `stop`, from the one stored at `first`."""
        waypoints = [self.waypoints.pop(first)]
        for t in range(first, stop - 1):
            _, _, gradient = self._take(t, waypoints[-1], second=False)
            waypoints.append(advance(self.trajectory.training, waypoints[-1], gradient))
        return waypoints


def _through(step: Step, gradient: Sequence[Tensor], adjoint: Sequence[Tensor]) -> tuple[Tensor | None, ...]:
    """Differentiate <gradient, adjoint> by the step's weights, inputs and soft targets."""
    wanted = [*step.weights, step.inputs] + [step.targets] * step.targets.requires_grad
    moving = [i for i, g in enumerate(gradient) if g.requires_grad]  # a rule may give constants
    return torch.autograd.grad([gradient[i] for i in moving], wanted, [adjoint[i] for i in moving], allow_unused=True)


def _add(total: Tensor, rows: Tensor | slice, part: Tensor | None, scale: float) -> None:
    """Add scale * part to total[rows], in place."""
    if part is not None:
        total[rows] = torch.add(total[rows], part, alpha=scale)


def fit(trajectory: Trajectory, images: Tensor, targets: Tensor, budget_mib: float) -> TrajectoryMemory:
    """Return the fastest memory that stays within the budget: all graphs, all weights, or every k-th weights.

    If every k-th of T weights is stored, ceil(T / k) + k of them are alive at once on the way back, next to one
    step's graph. The optimiser's state is stored along with the weights.
    """
    steps = len(trajectory.batches)
    first = begin(trajectory.training, trajectory.start)
    tensors = [tensor for part in (first.weights, *first.state.slots) for tensor in part]
    weights = sum(t.numel() * t.element_size() for t in tensors) / MIB
    step = trajectory.step(0, trajectory.start, images, targets, second=True)
    graph = graph_bytes(step, trajectory.training.clip) / MIB
    if steps * (graph + weights) <= budget_mib:
        return TrajectoryMemory(every=1, graphs=True)
    needs = {
        every: (math.ceil(steps / every) + every - (every == 1)) * weights + graph
        for every in range(1, math.isqrt(steps) + 2)
    }
    for every, need in needs.items():
        if need <= budget_mib:
            return TrajectoryMemory(every=every)
    least = min(needs.values())
    raise UsageError(
        f"Simulating {steps} local steps needs at least {math.ceil(least)} MiB, but budget_mib is "
        f"{budget_mib:g}: raise it, or attack with a method that does not simulate, such as sme."
    )


def graph_bytes(step: Step, clip: float | None = None) -> int:
    """Return the bytes that one step's twice differentiable gradient keeps alive, without the weights."""
    bytes_by_storage: dict[int, int] = {}
    weight_storages = {w.untyped_storage().data_ptr() for w in step.weights}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weight_storages:
            bytes_by_storage[storage.data_ptr()] = storage.nbytes()
        return tensor

    weights = [w.detach().requires_grad_() for w in step.weights]
    inner = replace(step, weights=weights, differentiable=True)
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor), torch.enable_grad():
        gradient = local_gradient(MeanGradient(), inner, clip)
    del gradient
    return sum(bytes_by_storage.values())
