"""Adam and its signed form against torch's, and the laws of every first-order solver."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from fedglass.attack.parts import Problem, no_progress
from fedglass.attack.solvers.adam import Adam, SignedAdam
from fedglass.attack.solvers.schedules import Constant, ExponentialDecay, Last, Lowest, RateSchedule, StepDecay
from fedglass.core.errors import UsageError
from fedglass.core.rng import stream
from fedglass.core.types import Unknown

Spec = Adam | SignedAdam
GOAL = torch.tensor([1.0, -2.0, 0.5, 3.0], dtype=torch.float64)


def rosenbrock(tensors: Sequence[Tensor], share: float) -> Tensor:
    x, y = tensors
    return (1 - x).square().sum() + 5 * (y - x.square()).square().sum()


def start() -> tuple[Unknown, Unknown]:
    x, y = (torch.randn(4, generator=stream(0, name), dtype=torch.float64) for name in "xy")
    return Unknown(x), Unknown(y, rate=0.3)


def by_torch(
    spec: Spec, unknowns: Sequence[Unknown], energy: Callable[..., Tensor]
) -> tuple[list[Tensor], list[float]]:
    tensors = [u.start.clone().requires_grad_() for u in unknowns]
    groups = [{"params": [t], "lr": spec.rate * u.rate} for t, u in zip(tensors, unknowns, strict=True)]
    optimiser = torch.optim.Adam(groups, betas=spec.betas, eps=spec.eps)
    energies = []
    for k in range(spec.iterations):
        for group, u in zip(optimiser.param_groups, unknowns, strict=True):
            group["lr"] = spec.rate * u.rate * spec.schedule.factor(k, spec.iterations)
        loss = energy(tensors, k / spec.iterations)
        energies.append(float(loss.detach()))
        for t, g in zip(tensors, torch.autograd.grad(loss, tensors), strict=True):
            t.grad = g.sign() if isinstance(spec, SignedAdam) else g
        optimiser.step()
    energies.append(float(energy(tensors, 1.0).detach()))
    return [t.detach() for t in tensors], energies


@pytest.mark.parametrize("make", [Adam, SignedAdam])
@pytest.mark.parametrize("schedule", [Constant(), StepDecay(), ExponentialDecay(0.9, 5)], ids=repr)
@pytest.mark.parametrize("iterations", [1, 2, 3, 40])
def test_step_by_step_the_same_as_torch(make: type[Spec], schedule: RateSchedule, iterations: int) -> None:
    spec = make(rate=0.05, iterations=iterations, schedule=schedule, betas=(0.8, 0.97), eps=1e-6)
    found = spec.minimise(Problem(start(), rosenbrock), no_progress)
    tensors, energies = by_torch(spec, start(), rosenbrock)
    for mine, theirs in zip(found.tensors, tensors, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(found.trace, torch.tensor(energies, dtype=torch.float64))
    assert found.energy == pytest.approx(energies[-1])
    assert found.finite


@pytest.mark.parametrize("make", [Adam, SignedAdam])
def test_the_share_of_the_way_goes_from_zero_to_one(make: type[Spec]) -> None:
    seen: list[float] = []

    def energy(tensors: Sequence[Tensor], share: float) -> Tensor:
        seen.append(share)
        return tensors[0].square().sum()

    make(iterations=4).minimise(Problem((Unknown(GOAL),), energy), no_progress)
    assert seen == [0.0, 0.25, 0.5, 0.75, 1.0]


@pytest.mark.parametrize("make", [Adam, SignedAdam])
@pytest.mark.parametrize(("low", "high"), [(-0.5, 0.75), (None, 0.75), (-0.5, None)])
def test_every_iterate_is_in_its_box(make: type[Spec], low: float | None, high: float | None) -> None:
    bottom, top = (None if b is None else torch.tensor(b, dtype=torch.float64) for b in (low, high))
    iterates: list[Tensor] = []

    def energy(tensors: Sequence[Tensor], share: float) -> Tensor:
        iterates.append(tensors[0].detach().clone())
        return (tensors[0] - GOAL).square().sum()

    unknown = Unknown(torch.zeros(4, dtype=torch.float64), bottom, top)
    found = make(rate=0.3, iterations=50).minimise(Problem((unknown,), energy), no_progress)
    floor, roof = (-math.inf if low is None else low), (math.inf if high is None else high)
    assert all(bool(((x >= floor) & (x <= roof)).all()) for x in iterates)
    torch.testing.assert_close(found.tensors[0], GOAL.clamp(floor, roof), rtol=0, atol=0.4)


def test_nothing_given_is_changed() -> None:
    unknowns = start()
    kept = [u.start.clone() for u in unknowns]
    found = Adam(iterations=5).minimise(Problem(unknowns, rosenbrock), no_progress)
    assert all(torch.equal(u.start, k) for u, k in zip(unknowns, kept, strict=True))
    assert not any(u.start.requires_grad for u in unknowns)
    assert not any(t.requires_grad for t in found.tensors)


def test_a_lazy_unknown_uses_its_gradient_until_the_next_one() -> None:
    """Only every third gradient of y is computed; in between Adam is fed the last one."""
    fast, slow = start()
    slow = replace(slow, every=3)
    iterations = 10
    spec = Adam(rate=0.05, iterations=iterations)
    found = spec.minimise(Problem((fast, slow), rosenbrock), no_progress)
    tensors = [u.start.clone().requires_grad_() for u in (fast, slow)]
    optimiser = torch.optim.Adam([{"params": [t], "lr": 0.05 * r} for t, r in zip(tensors, (1, 0.3), strict=True)])
    for k in range(iterations):
        gradients = torch.autograd.grad(rosenbrock(tensors, 0.0), tensors)
        tensors[0].grad = gradients[0]
        tensors[1].grad = gradients[1] if k % 3 == 0 else tensors[1].grad
        optimiser.step()
    for mine, theirs in zip(found.tensors, tensors, strict=True):
        torch.testing.assert_close(mine, theirs.detach())


def test_unknowns_may_all_be_lazy() -> None:
    unknowns = tuple(replace(u, every=2) for u in start())
    assert Adam(iterations=5).minimise(Problem(unknowns, rosenbrock), no_progress).finite


def cliff(kind: str) -> Callable[..., Tensor]:
    """Decreasing to the right, and beyond 0.95 it is not a number, infinite, or has no finite gradient."""

    def energy(tensors: Sequence[Tensor], share: float) -> Tensor:
        x = tensors[0]
        beyond = (x.detach() > 0.95).any()
        if kind == "gradient":
            bad = torch.where(beyond, x - x.detach(), torch.ones_like(x)).sqrt() * 0
            return -x.sum() + bad.sum()
        value = torch.tensor(math.nan if kind == "nan" else math.inf, dtype=x.dtype)
        return -x.sum() + torch.where(beyond, value, torch.zeros((), dtype=x.dtype))

    return energy


@pytest.mark.parametrize("make", [Adam, SignedAdam])
@pytest.mark.parametrize(
    ("kind", "keep", "iterations"),
    [
        ("nan", Last(), 30),
        ("nan", Last(), 10),  # the very last iterate is the first bad one
        ("nan", Lowest(), 30),
        ("inf", Last(), 30),
        ("inf", Last(), 10),
        ("inf", Lowest(), 30),
        ("gradient", Last(), 30),
    ],
)
def test_a_run_that_is_not_finite_returns_the_last_finite_iterate(
    make: type[Spec], kind: str, keep: Last | Lowest, iterations: int
) -> None:
    zero = torch.zeros(2, dtype=torch.float64)
    spec = make(rate=0.1, iterations=iterations, keep=keep)
    found = spec.minimise(Problem((Unknown(zero),), cliff(kind)), no_progress)
    assert found.tensors[0].tolist() == pytest.approx([0.9, 0.9], abs=1e-3)  # after nine steps of 0.1
    assert found.energy == pytest.approx(-found.tensors[0].sum())
    assert not found.finite
    assert len(found.trace) == iterations + 1


def test_only_the_last_evaluation_may_be_bad() -> None:
    def energy(tensors: Sequence[Tensor], share: float) -> Tensor:
        x = tensors[0]
        return -x.sum() + (math.nan if share == 1.0 and float(x.detach()[0]) > 0.25 else 0.0)

    spec = Adam(rate=0.1, iterations=3)
    found = spec.minimise(Problem((Unknown(torch.zeros(1)),), energy), no_progress)
    assert not found.finite
    assert float(found.tensors[0]) == pytest.approx(0.2, abs=1e-3)
    assert found.energy == pytest.approx(-0.2, abs=1e-3)


def test_a_start_that_is_not_finite_is_returned_with_its_flag() -> None:
    def energy(tensors: Sequence[Tensor], share: float) -> Tensor:
        return tensors[0].sum() * math.nan

    found = Adam(iterations=3).minimise(Problem((Unknown(GOAL),), energy), no_progress)
    assert torch.equal(found.tensors[0], GOAL)
    assert not found.finite
    assert math.isnan(found.energy)


@pytest.mark.parametrize("make", [Adam, SignedAdam])
def test_lowest_returns_the_lowest_iterate_with_its_own_energy(make: type[Spec]) -> None:
    iterates: list[tuple[float, Tensor]] = []

    def energy(tensors: Sequence[Tensor], share: float) -> Tensor:
        value = (tensors[0] - GOAL).abs().sum()  # with a constant rate the iterates dance around the minimum
        iterates.append((float(value.detach()), tensors[0].detach().clone()))
        return value

    spec = make(rate=0.4, iterations=60, keep=Lowest())
    found = spec.minimise(Problem((Unknown(torch.zeros_like(GOAL)),), energy), no_progress)
    best, where = min(iterates, key=lambda pair: pair[0])
    assert found.energy == best
    assert torch.equal(found.tensors[0], where)
    assert best < iterates[-1][0]  # so that `Last` would have been another
    assert float((found.tensors[0] - GOAL).abs().sum()) == found.energy


@pytest.mark.parametrize("make", [Adam, SignedAdam])
@pytest.mark.parametrize("iterations", [0, -3])
def test_a_solver_needs_an_iteration(make: type[Spec], iterations: int) -> None:
    with pytest.raises(UsageError, match=f"iterations must be at least 1, got {iterations}"):
        make(iterations=iterations)


def test_progress_ends_with_all_iterations() -> None:
    told: list[tuple[int, int]] = []
    Adam(iterations=250).minimise(Problem(start(), rosenbrock), lambda done, of: told.append((done, of)))
    assert told[0] == (0, 250)
    assert told[-1] == (250, 250)
    assert [d for d, _ in told] == sorted({d for d, _ in told})
    assert len(told) <= 130
