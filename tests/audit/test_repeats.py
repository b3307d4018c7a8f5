"""Noise that is not drawn anew cancels: inside of a message, and between messages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from fedglass.audit.repeats import between, within
from torch import Tensor

from fedglass.audit.assessment import repeated
from fedglass.core.params import weights_of
from fedglass.core.rng import stream
from fedglass.core.types import Knowledge, Observation, Whitening
from fedglass.models.catalogue import build

SHAPES = {"conv": (12, 3, 5, 5), "bias": (12,), "next": (12, 12, 5, 5), "linear": (10, 108), "scalar": ()}


def independent(seed: int) -> dict[str, Tensor]:
    return {name: torch.randn(shape, generator=stream(seed, "noise", name)) for name, shape in SHAPES.items()}


def of_shape(shape: Callable[[tuple[int, ...]], tuple[int, ...]]) -> dict[str, Tensor]:
    return {
        name: torch.zeros(whole) + torch.randn(shape(whole), generator=stream(0, "noise", name))
        for name, whole in SHAPES.items()
    }


def test_independent_noise_repeats_nowhere() -> None:
    for seed in range(20):
        assert list(within(independent(seed))) == []
        assert list(between(independent(seed), {"other": independent(seed + 100)})) == []


def test_heavy_tails_are_no_repetition() -> None:
    rare = {"w": torch.where(torch.rand(40, 50, generator=stream(0, "rare")) < 0.01, 100.0, 0.0)}
    cauchy = {"w": torch.empty(40, 50).cauchy_(generator=stream(0, "cauchy"))}
    assert list(within(rare)) == list(within(cauchy)) == []


@pytest.mark.parametrize(
    "shape",
    [
        lambda whole: whole[1:],
        lambda whole: (*whole[:1], *(1 for _ in whole[1:])),
        lambda whole: (*whole[:-1], *(1 for _ in whole[-1:])),
        lambda whole: (),
    ],
    ids=["one filter's", "a number for each filter", "along rows", "one number"],
)
def test_noise_that_was_drawn_for_less_than_a_tensor_is_found(
    shape: Callable[[tuple[int, ...]], tuple[int, ...]],
) -> None:
    assert {"next: along an axis", "linear: along an axis"} <= set(within(of_shape(shape)))


def test_tensors_that_begin_with_the_same_seed_are_found() -> None:
    seeded = {name: torch.randn(shape, generator=stream(0, "one seed")) for name, shape in SHAPES.items()}
    assert list(within(seeded)) == ["conv: as in next", "linear: as in next"]


def test_messages_with_the_same_noise_are_found_whatever_else_is_in_them() -> None:
    one, two = ({name: noise + independent(seed)[name] for name, noise in independent(0).items()} for seed in (1, 2))
    others = {"a": independent(3), "b": two, "c": {"conv": 0.01 * one["conv"]}, "d": {"else": one["conv"]}}
    assert list(between(one, others)) == ["b", "c"]


def test_what_is_zero_or_small_tells_nothing() -> None:
    silent = {"w": torch.zeros(100, 100), "b": torch.ones(10)}
    assert list(within(silent)) == list(between(silent, {"itself": silent})) == []


def test_a_model_that_is_sent_in_place_of_its_difference_is_no_noise() -> None:
    """The server has what it adds to, and subtracts it."""
    model = build("lenet", shape=(3, 12, 12), classes=10)
    before = weights_of(model)
    knows = Knowledge((3, 12, 12), 10, 1, Whitening((0.5,), (0.5,)))
    noise = {name: torch.randn(t.shape, generator=stream(0, name)) for name, t in before.items()}
    still = Observation(model, before, {}, {name: torch.zeros_like(t) for name, t in before.items()}, knows)
    assert repeated(replace(still, update=noise), still) == ()
    assert repeated(replace(still, update=before), still)[-1] == "as in the model that was sent"
    decay = replace(still, update={name: -10 * t for name, t in before.items()})
    decayed = {name: tensor + decay.update[name] for name, tensor in noise.items()}
    assert list(between(decayed, {"the model": before}))
    assert repeated(replace(still, update=decayed), decay) == ()
