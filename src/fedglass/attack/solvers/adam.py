"""Adam and its variants (signed, with lookahead, quantised), on a loop that never waits for the device.

Also L-BFGS and gradient descent with momentum, by torch's own optimisers.

The loop does not use `torch.optim.Adam`, because bounds, a rate for each unknown and the guard against non-finite steps
then cost a handful of small operations and no look-ups; a test compares the two.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor

from fedglass.attack.parts import Problem, Progress, Solution
from fedglass.attack.solvers.schedules import (
    Constant,
    Keep,
    Last,
    RateSchedule,
    current_states,
)
from fedglass.core.errors import UsageError, check_at_least
from fedglass.core.types import Unknown

REPORTS = 100
"""How often a solver calls its progress callback during a run."""


@dataclass(frozen=True)
class AdamOptions(ABC):
    """The options that all solvers of this family share."""

    rate: float = 0.1
    iterations: int = 1000
    schedule: RateSchedule = field(default_factory=Constant)
    keep: Keep = field(default_factory=Last)
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8

    def __post_init__(self) -> None:
        check_at_least("attack.iterations", self.iterations, 1)
        if not (math.isfinite(self.rate) and self.rate >= 0):
            raise UsageError(f"solver.rate must be a finite number of at least 0, got {self.rate!r}.")

    def minimise(self, problem: Problem, progress: Progress) -> Solution:
        """Run the hot loop.

        `alive` becomes false, on the device, at the first iterate of non-finite energy or gradient. That step returns
        to the iterate before it, and every later one stays there.
        """
        n = self.iterations
        descent, states = _Descent(problem, self), current_states()
        moving, tensors, alive, trace = descent.moving, descent.tensors, descent.alive, descent.trace
        if states is not None:
            states.begin_search(descent.restore)
        report_every = max(1, n // REPORTS)
        for k in range(len(trace), n):
            energy = problem.energy(tensors, k / n)
            due = [m for m in moving if k % m.every == 0]
            gradients = torch.autograd.grad(energy, [m.tensor for m in due]) if due else ()
            with torch.no_grad():
                trace.append(energy.detach())
                # A sum is finite only where all its entries are, and only then is its difference to itself zero:
                # half the operations of torch.isfinite.
                probe = sum((g.sum() for g in gradients), energy)
                alive &= (probe - probe) == 0
                descent.compare(energy)
                fed = self.direction(gradients, partial(descent.displaced_gradients, due, k / n))
                for m, gradient in zip(due, fed, strict=True):
                    m.gradient = gradient
                factor = self.schedule.factor(k, n)
                for m in moving:
                    m.step(k + 1, factor, alive)
            if states is not None and states.is_due():
                states.save(*descent.state())
            if k % report_every == 0:
                progress(k, n)
        final = problem.energy(tensors, 1.0).detach()
        if not math.isfinite(float(final)):  # only at the end may the loop wait for the device
            alive.fill_(False)
            with torch.no_grad():
                for m in moving:
                    m.tensor.copy_(m.safe)
            final = problem.energy(tensors, 1.0).detach()
        trace.append(final)
        chosen, chosen_energy = [t.detach() for t in tensors], final
        descent.compare(final)
        if descent.best:
            chosen, chosen_energy = descent.best, descent.lowest
        progress(n, n)
        return Solution(tuple(chosen), float(chosen_energy), torch.stack(trace).cpu(), finite=bool(alive))

    @abstractmethod
    def direction(self, gradients: Sequence[Tensor], elsewhere: DisplacedGradients) -> Sequence[Tensor]:
        """Return the tensors that Adam takes instead of the gradients."""


@dataclass(frozen=True)
class Adam(AdamOptions):
    """Adam [Kingma and Ba, 2015] with projection onto each unknown's box after every step."""

    def direction(self, gradients: Sequence[Tensor], elsewhere: DisplacedGradients) -> Sequence[Tensor]:
        return gradients


@dataclass(frozen=True)
class SignedAdam(AdamOptions):
    """Adam on the signs of the gradient's entries [Geiping et al., 2020]."""

    def direction(self, gradients: Sequence[Tensor], elsewhere: DisplacedGradients) -> Sequence[Tensor]:
        return [torch.sign(g) for g in gradients]


DisplacedGradients = Callable[[Sequence[Tensor]], Sequence[Tensor]]
"""Computes the gradients with the unknowns displaced by these tensors, at the cost of another evaluation."""


class _Descent:
    """Everything that the next iteration of the hot loop depends on, as tensors that are changed in place."""

    def __init__(self, problem: Problem, spec: AdamOptions) -> None:
        self.problem, self.moving = problem, [_MovingUnknown(unknown, spec) for unknown in problem.unknowns]
        self.tensors = tuple(m.tensor for m in self.moving)
        self.alive = torch.ones((), dtype=torch.bool, device=self.tensors[0].device)
        self.trace: list[Tensor] = []
        skipped = spec.keep.skipped(spec.iterations)
        self.skipped_left = skipped or 0
        self.best = [] if skipped is None else [t.detach().clone() for t in self.tensors]
        """The iterate of lowest energy; empty if the last one is returned."""
        self.lowest = torch.full((), math.inf, device=self.alive.device, dtype=self.tensors[0].dtype)

    def compare(self, energy: Tensor) -> None:
        """Keep the present iterate if it has the lowest energy; the first few are not compared."""
        if not self.best:
            return
        if self.skipped_left > 0:
            self.skipped_left -= 1
            return
        lower = (energy < self.lowest) & torch.isfinite(energy)
        self.lowest = torch.where(lower, energy.detach(), self.lowest)
        for best, tensor in zip(self.best, self.tensors, strict=True):
            torch.where(lower, tensor.detach(), best, out=best)

    @torch.enable_grad()
    def displaced_gradients(
        self, due: Sequence[_MovingUnknown], share: float, offsets: Sequence[Tensor]
    ) -> Sequence[Tensor]:
        """Return the gradients of the unknowns that are due, displaced by `offsets`."""
        moved = {id(m): (m.tensor + o).detach().requires_grad_() for m, o in zip(due, offsets, strict=True)}
        energy = self.problem.energy(tuple(moved.get(id(m), m.tensor) for m in self.moving), share)
        return torch.autograd.grad(energy, list(moved.values()))

    def state(self) -> tuple[dict[str, Tensor], dict[str, int]]:
        """Return the tensors and the numbers to store after an iteration."""
        tensors = {**self._tensors(), "trace": torch.stack(self.trace)}
        return ({**tensors, "lowest": self.lowest}, {"skipped": self.skipped_left}) if self.best else (tensors, {})

    @torch.no_grad()
    def restore(self, tensors: Mapping[str, Tensor], facts: Mapping[str, int]) -> None:
        """Continue from a stored state."""
        for name, tensor in self._tensors().items():
            tensor.copy_(tensors[name])
        self.trace.extend(tensors["trace"].to(self.alive.device).unbind())
        if self.best:
            self.lowest = tensors["lowest"].to(self.lowest)
            self.skipped_left = facts["skipped"]

    def _tensors(self) -> dict[str, Tensor]:
        fields = ("tensor", "safe", "gradient", "mean", "square")
        named = {f"{i} {field}": getattr(m, field) for i, m in enumerate(self.moving) for field in fields}
        best = {f"{i} best": best for i, best in enumerate(self.best)}
        return {**named, **best, "alive": self.alive}


class _MovingUnknown:
    """One unknown with its moments."""

    def __init__(self, unknown: Unknown, spec: AdamOptions) -> None:
        self.tensor = unknown.start.detach().clone().requires_grad_()
        self.safe = self.tensor.detach().clone()
        """The last iterate of finite energy and gradient."""
        self.low, self.high = unknown.low, unknown.high
        self.rate = spec.rate * unknown.rate
        self.betas, self.eps = spec.betas, spec.eps
        self.every = unknown.every
        self.gradient = torch.zeros_like(unknown.start)
        self.mean = torch.zeros_like(unknown.start)
        self.square = torch.zeros_like(unknown.start)

    def step(self, k: int, factor: float, alive: Tensor) -> None:
        b1, b2 = self.betas
        self.mean.lerp_(self.gradient, 1 - b1)
        self.square.mul_(b2).addcmul_(self.gradient, self.gradient, value=1 - b2)
        scale = (self.square.sqrt() / math.sqrt(1 - b2**k)).add_(self.eps)
        moved = torch.addcdiv(self.tensor, self.mean, scale, value=-self.rate * factor / (1 - b1**k))
        if self.low is not None or self.high is not None:
            moved = torch.clamp(moved, self.low, self.high)
        torch.where(alive, self.tensor, self.safe, out=self.safe)
        torch.where(alive, moved, self.safe, out=self.tensor)


@dataclass(frozen=True)
class LookaheadAdam(AdamOptions):
    """Signed Adam that looks one step ahead: it takes (1 - blend) sign g(x) + blend sign g(x - rate sign g(x)).

    The gradient regularisation of FedLeak [Fan et al., 2025]: the second gradient approximates that of the gradient's
    norm. The release takes the trial point from a step of Adam itself, and advances Adam's moments twice an iteration;
    here it is a plain signed step of the full rate. `blend=0` is `SignedAdam`, at twice the cost.
    """

    evaluations: ClassVar[float] = 2.0
    """Evaluations of the energy in each iteration."""

    rate: float = 0.01
    blend: float = 0.3

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.blend <= 1:
            raise UsageError(f"solver.blend must be between 0 and 1, got {self.blend:g}.")

    def direction(self, gradients: Sequence[Tensor], elsewhere: DisplacedGradients) -> Sequence[Tensor]:
        signs = [torch.sign(g) for g in gradients]
        signs_ahead = [torch.sign(g) for g in elsewhere([-self.rate * s for s in signs])]
        return [torch.lerp(a, b, self.blend) for a, b in zip(signs, signs_ahead, strict=True)]


@dataclass(frozen=True)
class QuantisedAdam(AdamOptions):
    """Adam on gradients of a few levels: 0.2 sign(g) + 0.8 clamp(round(2 g / median|g|) / 2, -1, 1) [Ye et al., 2024,
    release].

    It lies between Adam and signed Adam: entries below a quarter of the median count a fifth of those above it. The
    release doubles the gradients of its first 100 iterations; Adam's normalisation nearly undoes that, so it is left
    out.
    """

    def direction(self, gradients: Sequence[Tensor], elsewhere: DisplacedGradients) -> Sequence[Tensor]:
        return [quantised(g) for g in gradients]


def quantised(gradient: Tensor) -> Tensor:
    """Round the gradient's entries to the levels 0.2, 0.6 and 1 of either sign, by their size relative to the median.

    >>> quantised(torch.tensor([-4.0, -1.0, 0.5, 0.1, 1.0]))
    tensor([-1.0000, -1.0000,  0.6000,  0.2000,  1.0000])
    """
    level = torch.round(2 * gradient / (gradient.abs().median() + 1e-10)) / 2
    return 0.2 * gradient.sign() + 0.8 * level.clamp(-1, 1)


@dataclass(frozen=True)
class LBFGS:
    """`torch.optim.LBFGS` as Deep Leakage from Gradients runs it [Zhu et al., 2019].

    An iteration is one call of `step`, of up to `inner` evaluations. A box is enforced by projection after
    each iteration. A non-finite energy ends the run with the last finite iterate.
    """

    rate: float = 1.0
    iterations: int = 300
    inner: int = 20
    history: int = 100

    def __post_init__(self) -> None:
        check_at_least("attack.iterations", self.iterations, 1)

    @property
    def evaluations(self) -> float:
        """The most evaluations of the energy in an iteration."""
        return float(self.inner)

    def minimise(self, problem: Problem, progress: Progress) -> Solution:
        starts = (u.start.detach().clone(memory_format=torch.contiguous_format) for u in problem.unknowns)
        tensors = tuple(start.requires_grad_() for start in starts)
        optimiser = torch.optim.LBFGS(tensors, lr=self.rate, max_iter=self.inner, history_size=self.history)
        return _descend_by(optimiser, tensors, self.iterations, problem, progress)


@dataclass(frozen=True)
class Momentum:
    """Gradient descent with Nesterov's momentum [Zhang et al., 2020], by `torch.optim.SGD`.

    A box is enforced by projection after each iteration; the velocity stays. A non-finite energy ends the run with the
    last finite iterate.
    """

    rate: float = 0.02
    iterations: int = 1500
    momentum: float = 0.9

    def __post_init__(self) -> None:
        check_at_least("attack.iterations", self.iterations, 1)
        if not 0 <= self.momentum < 1:
            raise UsageError(f"solver.momentum must be at least 0 and below 1, got {self.momentum:g}.")

    def minimise(self, problem: Problem, progress: Progress) -> Solution:
        tensors = tuple(u.start.detach().clone().requires_grad_() for u in problem.unknowns)
        groups = [{"params": [t], "lr": self.rate * u.rate} for t, u in zip(tensors, problem.unknowns, strict=True)]
        optimiser = torch.optim.SGD(groups, self.rate, self.momentum, nesterov=self.momentum > 0)
        return _descend_by(optimiser, tensors, self.iterations, problem, progress)


def _descend_by(
    optimiser: torch.optim.Optimizer,
    tensors: tuple[Tensor, ...],
    iterations: int,
    problem: Problem,
    progress: Progress,
) -> Solution:
    """Call `step` of one of torch's optimisers for every iteration, and project onto the boxes after each."""

    def evaluate(share: float) -> float:
        energy = problem.energy(tensors, share)
        for tensor, gradient in zip(tensors, torch.autograd.grad(energy, tensors), strict=True):
            tensor.grad = gradient.contiguous()  # the optimiser flattens it
        return float(energy.detach())

    def final_energy(at: Sequence[Tensor]) -> float:
        return float(problem.energy([t.detach().requires_grad_() for t in at], 1.0).detach())

    trace = torch.full((iterations + 1,), math.nan)
    safe, finite = tuple(t.detach().clone() for t in tensors), True
    for k in range(iterations):
        before_step = tuple(t.detach().clone() for t in tensors)
        # `step` returns the energy before the step.
        energy = float(optimiser.step(partial(evaluate, k / iterations)))
        trace[k] = energy
        safe = before_step if math.isfinite(energy) else safe
        finite = math.isfinite(energy) and all(bool(torch.isfinite(t).all()) for t in tensors)
        if not finite:
            break
        with torch.no_grad():
            for unknown, tensor in zip(problem.unknowns, tensors, strict=True):
                if unknown.low is not None or unknown.high is not None:
                    tensor.copy_(torch.clamp(tensor, unknown.low, unknown.high))
        progress(k, iterations)
    chosen, last = tensors, final_energy(tensors) if finite else math.nan
    if not math.isfinite(last):
        finite, chosen, last = False, safe, final_energy(safe)
    trace[iterations] = last
    progress(iterations, iterations)
    return Solution(tuple(t.detach() for t in chosen), last, trace, finite=finite)
