"""Limited-memory BFGS, the solver of the first gradient inversions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from fedglass.attack.parts import PausableRun, Problem, Progress, Solution, run_to_end
from fedglass.attack.solvers.schedules import check_iterations


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
        check_iterations(self.iterations)

    def minimise(self, problem: Problem, progress: Progress) -> Solution:
        return run_to_end(self.steps(problem, progress))

    def steps(self, problem: Problem, progress: Progress) -> PausableRun[Solution]:
        tensors = tuple(u.start.detach().clone(memory_format=torch.contiguous_format) for u in problem.unknowns)
        for tensor in tensors:
            tensor.requires_grad_()
        optimiser = torch.optim.LBFGS(tensors, lr=self.rate, max_iter=self.inner, history_size=self.history)
        trace = torch.full((self.iterations + 1,), math.nan)
        safe = [t.detach().clone() for t in tensors]
        finite = True
        for k in range(self.iterations):
            before_step = [t.detach().clone() for t in tensors]
            evaluate = partial(_closure, problem, tensors, k / self.iterations)
            # `step` returns the energy before the step: that of `here`.
            energy = float(optimiser.step(evaluate))  # type: ignore[no-untyped-call] # torch does not annotate it
            trace[k] = energy
            safe = before_step if math.isfinite(energy) else safe
            finite = math.isfinite(energy) and all(bool(torch.isfinite(t).all()) for t in tensors)
            if not finite:
                break
            _project(problem, tensors)
            progress(k, self.iterations)
            yield (k + 1) / self.iterations, energy
        last = _energy(problem, tensors) if finite else math.nan
        if not math.isfinite(last):
            finite, tensors, last = False, tuple(safe), _energy(problem, safe)
        trace[self.iterations] = last
        progress(self.iterations, self.iterations)
        return Solution(tuple(t.detach() for t in tensors), last, trace, finite=finite)


def _closure(problem: Problem, tensors: tuple[Tensor, ...], share: float) -> float:
    energy = problem.energy(tensors, share)
    for tensor, gradient in zip(tensors, torch.autograd.grad(energy, tensors), strict=True):
        tensor.grad = gradient.contiguous()  # the optimiser flattens it
    return float(energy.detach())


def _energy(problem: Problem, tensors: Sequence[Tensor]) -> float:
    return float(problem.energy([t.detach().requires_grad_() for t in tensors], 1.0).detach())


@torch.no_grad()
def _project(problem: Problem, tensors: tuple[Tensor, ...]) -> None:
    for unknown, tensor in zip(problem.unknowns, tensors, strict=True):
        if unknown.low is not None or unknown.high is not None:
            tensor.copy_(torch.clamp(tensor, unknown.low, unknown.high))
