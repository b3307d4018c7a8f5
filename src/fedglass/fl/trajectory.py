"""The gradient of a local training with respect to its data, without one graph over all its steps.

Local training is w_{t+1} = w_t - lr g(w_t, x_t), t = 0..T-1, and its message is the sum of its gradients,
G = (w_0 - w_T) / lr. For a loss with gradient a_T = dL/dw_T the adjoint of the trajectory is

    a_t = a_{t+1} - lr H_t a_{t+1}                  H_t: the Hessian of step t's loss in the weights
    dL/dx_t = -lr d/dx <g(w_t, x_t), a_{t+1}>

and one double backward per step gives both. What must be remembered is the trajectory of weights, or only
every k-th of them, instead of the activations of all steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from fedglass.fl.local import Batch, GradientFn, MeanGradient, Step, descend
from fedglass.models.network import Network


@dataclass(frozen=True)
class Memory:
    """What is kept of a trajectory on the way there, for the way back.

    The weights of every `every`-th step are kept and the others computed again. With `graphs`, which asks for
    `every=1`, each step's own graph is kept too, so that nothing is computed twice.
    """

    every: int = 1
    graphs: bool = False


@dataclass(frozen=True, eq=False)
class Trajectory:
    """A local training whose sum of gradients is differentiable in its images and in soft targets."""

    network: Network
    start: Sequence[Tensor]
    batches: Sequence[Batch]
    lr: float
    memory: Memory = Memory()
    rule: GradientFn = field(default_factory=MeanGradient)

    def gradient_sum(self, images: Tensor, targets: Tensor) -> tuple[Tensor, ...]:
        """(w_0 - w_T) / lr.  # images (epochs or 1, n, c, h, w), targets (n,), (n, classes) or (epochs, n)"""
        found: tuple[Tensor, ...] = _Simulate.apply(self, images, targets)  # type: ignore[no-untyped-call] # torch
        return found

    def step(self, t: int, weights: Sequence[Tensor], images: Tensor, targets: Tensor, second: bool) -> Step:
        """Step t, ready to be differentiated once, or twice where `second`."""
        batch = self.batches[t]
        epoch = batch.epoch % images.shape[0]  # where the epochs share their images there is one row of them
        known = targets[batch.epoch] if per_epoch(targets) else targets
        inputs, labels = images[epoch, batch.rows].detach(), known[batch.rows].detach()
        if second:
            inputs.requires_grad_()
            labels.requires_grad_(labels.is_floating_point())
        return Step(self.network, weights, inputs, labels, differentiable=second)


def per_epoch(targets: Tensor) -> bool:
    """Whether these are class indices in an order of their own for each epoch.  # (epochs, n)"""
    return targets.ndim == 2 and not targets.is_floating_point()


class _Simulate(torch.autograd.Function):
    """Trajectory.gradient_sum as one node of the attack's graph."""

    @staticmethod
    def forward(ctx: Any, trajectory: Trajectory, images: Tensor, targets: Tensor) -> tuple[Tensor, ...]:
        ctx.run = run = _Run(trajectory, images.detach(), targets.detach())
        last = run.there()
        return tuple((s - w) / trajectory.lr for s, w in zip(trajectory.start, last, strict=True))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, Tensor, Tensor | None]:
        run: _Run = ctx.run
        to_images, to_targets = run.back([-g / run.of.lr for g in gradients])
        return None, to_images, to_targets


@dataclass(eq=False)
class _Run:
    """One pass along a trajectory and back."""

    of: Trajectory
    images: Tensor
    targets: Tensor
    kept: dict[int, Sequence[Tensor]] = field(default_factory=dict)
    graphs: dict[int, tuple[Step, Sequence[Tensor]]] = field(default_factory=dict)

    def there(self) -> Sequence[Tensor]:
        """The weights at the end; `kept` and `graphs` are filled on the way."""
        weights: Sequence[Tensor] = [w.detach().requires_grad_() for w in self.of.start]
        for t in range(len(self.of.batches)):
            step, gradient = self._gradient(t, weights, second=self.of.memory.graphs)
            if self.of.memory.graphs:
                self.graphs[t] = step, gradient
            elif t % self.of.memory.every == 0:
                self.kept[t] = weights
            weights = descend(weights, gradient, self.of.lr)
        return weights

    def back(self, adjoint: Sequence[Tensor]) -> tuple[Tensor, Tensor | None]:
        """dL/d(images) and, for soft targets, dL/d(targets), from dL/dw_T."""
        to_images = torch.zeros_like(self.images)
        to_targets = torch.zeros_like(self.targets) if self.targets.is_floating_point() else None
        for t, step, gradient in self._steps_backward():
            wanted = [*step.weights, step.inputs] + [step.targets] * step.targets.requires_grad
            moving = [i for i, g in enumerate(gradient) if g.requires_grad]  # a rule may give constants
            found = torch.autograd.grad(
                [gradient[i] for i in moving], wanted, [adjoint[i] for i in moving], allow_unused=True
            )
            n = len(step.weights)
            batch = self.of.batches[t]
            _subtract(to_images[batch.epoch % len(to_images)], batch.rows, found[n], self.of.lr)
            if to_targets is not None:
                _subtract(to_targets, batch.rows, found[n + 1], self.of.lr)
            adjoint = [
                a if h is None else torch.sub(a, h, alpha=self.of.lr) for a, h in zip(adjoint, found, strict=False)
            ]
        return to_images, to_targets

    def _gradient(self, t: int, weights: Sequence[Tensor], second: bool) -> tuple[Step, Sequence[Tensor]]:
        step = self.of.step(t, weights, self.images, self.targets, second)
        with torch.enable_grad():
            return step, self.of.rule.gradient(step)

    def _steps_backward(self) -> Iterator[tuple[int, Step, Sequence[Tensor]]]:
        """Each step with its twice differentiable gradient, from the last to the first."""
        steps, every = len(self.of.batches), self.of.memory.every
        if self.of.memory.graphs:
            for t in reversed(range(steps)):
                yield t, *self.graphs.pop(t)
            return
        for first in reversed(range(0, steps, every)):
            weights = self._again(first, min(first + every, steps))
            for t in reversed(range(first, first + len(weights))):
                yield t, *self._gradient(t, weights.pop(), second=True)

    def _again(self, first: int, stop: int) -> list[Sequence[Tensor]]:
        """The weights at the steps from `first` to before `stop`, from those kept at `first`."""
        weights = [self.kept.pop(first)]
        for t in range(first, stop - 1):
            _, gradient = self._gradient(t, weights[-1], second=False)
            weights.append(descend(weights[-1], gradient, self.of.lr))
        return weights


def _subtract(total: Tensor, rows: Tensor | slice, part: Tensor | None, lr: float) -> None:
    """total[rows] -= lr * part, in place."""
    if part is not None:
        total[rows] = torch.sub(total[rows], part, alpha=lr)
