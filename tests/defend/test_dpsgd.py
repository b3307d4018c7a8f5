"""Differentially private SGD."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from fedglass.core.errors import UsageError
from fedglass.core.rng import stream
from fedglass.core.types import Training
from fedglass.defend.dpsgd import DPSGD, PoissonDPSGD
from fedglass.defend.noise_model import NoiseModel, noise_model
from fedglass.fl.local import MeanGradient, Step, schedule, train
from fedglass.fl.release import Protection


def flat(tensors: list[Tensor]) -> Tensor:
    return torch.cat([t.detach().reshape(-1) for t in tensors])


def test_infinite_clip_and_no_noise_is_sgd(step: Step) -> None:
    plan = list(schedule(Training(lr=0.1, epochs=2, batch_size=3), 4, stream(0, "order")))
    arguments = (step.network, step.weights, step.inputs, step.targets, plan, Training(lr=0.1))
    private = train(*arguments, DPSGD(clip=1e6, noise_multiplier=0.0), stream(0, "noise"))
    torch.testing.assert_close(private, train(*arguments, MeanGradient()))


@pytest.mark.parametrize("clip", [0.1, 0.9, 3.0])
def test_clipping_is_that_of_the_definition(
    step: Step, one_by_one: Callable[[Step], list[list[Tensor]]], clip: float
) -> None:
    slow = torch.zeros(sum(w.numel() for w in step.weights))
    for own in map(flat, one_by_one(step)):
        slow += own / max(1.0, float(own.norm()) / clip) / 4
    torch.testing.assert_close(flat(list(DPSGD(clip, 0.0).gradient(step))), slow)


def test_the_norm_is_at_most_the_clip(step: Step) -> None:
    assert float(flat(list(DPSGD(0.05, 0.0).gradient(step))).norm()) <= 0.05 * (1 + 1e-5)


def test_noise_has_the_stated_deviation(step: Step) -> None:
    quiet = flat(list(DPSGD(0.5, 0.0).gradient(step)))
    drawn = torch.stack([flat(list(DPSGD(0.5, 2.0).gradient(step))) - quiet for _ in range(150)])
    assert float(drawn.std()) == pytest.approx(2.0 * 0.5 / 4, rel=0.03)  # z C / B


def test_the_order_of_the_examples_does_not_matter(step: Step) -> None:
    order = torch.tensor([3, 1, 0, 2])
    shuffled = replace(step, inputs=step.inputs[order], targets=step.targets[order])
    part = DPSGD(0.5, 0.0)
    torch.testing.assert_close(list(part.gradient(step)), list(part.gradient(shuffled)))


@pytest.mark.parametrize("expected", [2.5, 4.0, 100])
def test_an_expected_size_takes_the_place_of_the_batch_size(step: Step, expected: float) -> None:
    quiet, scaled = (flat(list(DPSGD(0.5, 0.0, expected_batch_size=size).gradient(step))) for size in (None, expected))
    torch.testing.assert_close(scaled, quiet * 4 / expected)
    shield = Protection(gradient=DPSGD(0.5, 2.0, expected_batch_size=expected))
    model = noise_model(shield, Training(lr=0.1), 4)
    assert isinstance(model, NoiseModel)
    assert (model.std, model.per_round) == (pytest.approx(0.1 * 2.0 * 0.5 / expected), 0.5)


def test_poisson_samples_are_divided_by_the_expected_size(step: Step) -> None:
    part = PoissonDPSGD(0.5, 0.0, 1.0, expected_batch_size=8)
    torch.testing.assert_close(flat(list(part.gradient(step))), flat(list(DPSGD(0.5, 0.0).gradient(step))) / 2)


@pytest.mark.parametrize("expected", [0, -1, math.inf, "3", True])
def test_what_is_no_size_is_refused(expected: Any) -> None:
    with pytest.raises(UsageError, match=r"DPSGD\.expected_batch_size must be"):
        DPSGD(1.0, 1.0, expected_batch_size=expected)


@pytest.mark.parametrize("part", [DPSGD(1.0, 1.1), PoissonDPSGD(1.0, 1.1, 0.5, expected_batch_size=3.0)])
def test_only_what_is_set_is_printed(part: DPSGD) -> None:
    assert eval(repr(part)) == part
    assert ("expected" in repr(part)) == (part.expected_batch_size is not None)


def test_repr_and_determinism(step: Step) -> None:
    part = DPSGD(clip=1.0, noise_multiplier=1.1)
    assert repr(part) == "DPSGD(clip=1.0, noise_multiplier=1.1)"
    first, again = (flat(list(part.gradient(replace(step, generator=stream(1, "noise"))))) for _ in range(2))
    assert torch.equal(first, again)


@pytest.mark.parametrize(("clip", "noise"), [(0.0, 1.0), (-1.0, 1.0), (math.inf, 0.0), (1.0, -0.1), (1.0, math.nan)])
def test_bad_strengths_are_refused(clip: float, noise: float) -> None:
    with pytest.raises(UsageError, match=r"DPSGD\.(clip|noise_multiplier) must be"):
        DPSGD(clip, noise)
