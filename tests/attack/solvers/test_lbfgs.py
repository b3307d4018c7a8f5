"""L-BFGS against torch's own, with box and guard."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from fedglass.attack.parts import Problem, no_progress
from fedglass.attack.solvers.adam import LBFGS
from fedglass.core.errors import UsageError
from fedglass.core.rng import stream
from fedglass.core.types import Unknown


def rosenbrock(tensors: Sequence[Tensor], share: float) -> Tensor:
    x, y = tensors
    return (1 - x).square().sum() + 5 * (y - x.square()).square().sum()


def start() -> tuple[Unknown, Unknown]:
    return tuple(  # type: ignore[return-value]  # of two
        Unknown(torch.randn(3, generator=stream(0, name), dtype=torch.float64)) for name in "xy"
    )


def test_the_same_as_torch() -> None:
    found = LBFGS(rate=0.5, iterations=6, inner=4, history=5).minimise(Problem(start(), rosenbrock), no_progress)
    tensors = [u.start.clone().requires_grad_() for u in start()]
    optimiser = torch.optim.LBFGS(tensors, lr=0.5, max_iter=4, history_size=5)

    def closure() -> Tensor:
        optimiser.zero_grad()
        loss = rosenbrock(tensors, 0.0)
        loss.backward()  # type: ignore[no-untyped-call]  # torch
        return loss

    energies = [float(optimiser.step(closure).detach()) for _ in range(6)]  # type: ignore[no-untyped-call]  # torch
    for mine, theirs in zip(found.tensors, tensors, strict=True):
        torch.testing.assert_close(mine, theirs.detach())
    assert found.trace[:-1].tolist() == pytest.approx(energies)
    assert found.energy == pytest.approx(float(rosenbrock(found.tensors, 1.0)))
    assert found.finite


def test_it_finds_the_minimum() -> None:
    found = LBFGS(rate=0.5, iterations=60).minimise(Problem(start(), rosenbrock), no_progress)
    assert all(torch.allclose(t, torch.ones(3, dtype=torch.float64), atol=1e-3) for t in found.tensors)
    assert len(found.trace) == 61


def test_the_box_holds() -> None:
    def energy(tensors: Sequence[Tensor], share: float) -> Tensor:
        return (tensors[0] - 3).square().sum()

    unknown = Unknown(torch.zeros(2), torch.tensor(-1.0), torch.tensor(0.5))
    found = LBFGS(iterations=5).minimise(Problem((unknown,), energy), no_progress)
    assert found.tensors[0].tolist() == [0.5, 0.5]
    assert found.energy == pytest.approx(12.5)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_run_that_is_not_finite_returns_the_last_finite_iterate(bad: float) -> None:
    def energy(tensors: Sequence[Tensor], share: float) -> Tensor:
        x = tensors[0]
        # Softly falling, so that the steps are short; not finite beyond four.
        return torch.exp(-x).sum() + (bad if float(x.detach().max()) > 4 else 0.0)

    spec = LBFGS(rate=0.5, iterations=50, inner=1)
    found = spec.minimise(Problem((Unknown(torch.zeros(1)),), energy), no_progress)
    assert not found.finite
    assert found.tensors[0].isfinite().all()
    assert 0 < float(found.tensors[0]) <= 4
    assert found.energy == pytest.approx(float(torch.exp(-found.tensors[0])))
    finite = found.trace[:-1][found.trace[:-1].isfinite()]
    assert found.energy == pytest.approx(float(finite[-1]))  # the last finite one, not one before it


def test_a_start_that_is_not_finite_is_returned_with_its_flag() -> None:
    def energy(tensors: Sequence[Tensor], share: float) -> Tensor:
        return tensors[0].sum() * math.nan

    found = LBFGS(iterations=3).minimise(Problem((Unknown(torch.ones(2)),), energy), no_progress)
    assert found.tensors[0].tolist() == [1.0, 1.0]
    assert not found.finite


def test_unknowns_and_gradients_need_not_be_contiguous() -> None:
    turned = torch.arange(6.0).view(2, 3).t()

    def energy(tensors: Sequence[Tensor], share: float) -> Tensor:
        return (tensors[0].t().expand(2, 3) - 1).square().sum()

    found = LBFGS(iterations=5).minimise(Problem((Unknown(turned),), energy), no_progress)
    torch.testing.assert_close(found.tensors[0], torch.ones(3, 2))
    assert turned.tolist() == [[0, 3], [1, 4], [2, 5]]


def test_a_solver_needs_an_iteration() -> None:
    with pytest.raises(UsageError, match="iterations must be at least 1, got 0"):
        LBFGS(iterations=0)
