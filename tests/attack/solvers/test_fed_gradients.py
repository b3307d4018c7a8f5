"""Forms of Adam that are fed something else than the gradient."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from fedglass.attack.parts import Problem, no_progress
from fedglass.attack.solvers.adam import LookaheadAdam, QuantisedAdam, SignedAdam, quantised
from fedglass.core.errors import UsageError
from fedglass.core.rng import stream
from fedglass.core.types import Unknown


def unknowns() -> tuple[Unknown, ...]:
    draws = [torch.randn(2, 3, generator=stream(i, "start")) for i in range(2)]
    return Unknown(draws[0]), Unknown(draws[1], rate=0.5, every=2)


def bowl(tensors: Sequence[Tensor], share: float) -> Tensor:
    return (tensors[0] - 1).pow(4).sum() + (tensors[0] * tensors[1]).square().sum()


def test_without_a_blend_looking_ahead_is_signed_adam() -> None:
    problem = Problem(unknowns(), bowl)
    ahead = LookaheadAdam(rate=0.05, iterations=20, blend=0.0).minimise(problem, no_progress)
    signed = SignedAdam(rate=0.05, iterations=20).minimise(problem, no_progress)
    assert all(map(torch.equal, ahead.tensors, signed.tensors))
    assert torch.equal(ahead.trace, signed.trace)


def test_the_look_ahead_is_a_signed_step_of_the_full_rate() -> None:
    seen: list[Tensor] = []

    def energy(tensors: Sequence[Tensor], share: float) -> Tensor:
        seen.append(tensors[0].detach().clone())
        return tensors[0].square().sum()

    start = torch.tensor([0.05, -0.3, 2.0])
    found = LookaheadAdam(rate=0.1, iterations=1, blend=0.3).minimise(Problem((Unknown(start),), energy), no_progress)
    torch.testing.assert_close(seen[1], start - 0.1 * start.sign())
    assert len(seen) == 3  # here, ahead, and the result
    # The first step of Adam has the length of the rate, in the direction of the blend: 0.7 - 0.3 > 0 for all.
    torch.testing.assert_close(found.tensors[0], start - 0.1 * start.sign())


def test_where_the_gradient_turns_a_full_blend_follows_the_gradient_ahead() -> None:
    start = torch.tensor([0.05, 1.0])
    problem = Problem((Unknown(start),), lambda tensors, share: tensors[0].square().sum())
    found = LookaheadAdam(rate=0.1, iterations=1, blend=1.0).minimise(problem, no_progress)
    torch.testing.assert_close(found.tensors[0], torch.tensor([0.15, 0.9]))


@pytest.mark.parametrize("blend", [-0.1, 1.1])
def test_a_blend_lies_between_none_and_all(blend: float) -> None:
    with pytest.raises(UsageError, match="blend must be between 0 and 1"):
        LookaheadAdam(blend=blend)


def test_quantised_gradients_have_six_levels_keep_their_sign_and_forget_their_scale() -> None:
    gradient = torch.randn(1000, generator=stream(0, "g"))
    levels = quantised(gradient)
    assert torch.equal(levels.sign(), gradient.sign())
    assert {round(v, 4) for v in levels.tolist()} == {-1.0, -0.6, -0.2, 0.2, 0.6, 1.0}
    torch.testing.assert_close(quantised(3e-4 * gradient), levels, rtol=1e-5, atol=1e-5)
    assert torch.equal(quantised(torch.zeros(4)), torch.zeros(4))
    size = gradient.abs() / gradient.abs().median()
    assert bool((levels.abs() < 0.3).eq(size < 0.25).all())
    assert bool((levels.abs() > 0.9).eq(size > 0.75).all())


def test_quantised_adam_finds_the_minimum() -> None:
    problem = Problem((Unknown(torch.zeros(3)),), lambda tensors, share: (tensors[0] - 1).square().sum())
    found = QuantisedAdam(rate=0.05, iterations=100).minimise(problem, no_progress)
    torch.testing.assert_close(found.tensors[0], torch.ones(3), atol=0.1, rtol=0)


@pytest.mark.parametrize("make", [QuantisedAdam, LookaheadAdam])
def test_these_solvers_need_an_iteration(make: type[QuantisedAdam] | type[LookaheadAdam]) -> None:
    with pytest.raises(UsageError, match="iterations must be at least 1, got 0"):
        make(iterations=0)
