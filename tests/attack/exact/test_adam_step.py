"""One step of Adam moves weights of small gradients by a little less than others, which gives these gradients."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fedglass.attack.exact.adam_step import adam_step
from fedglass.attack.exact.exact import ExactSolution, SearchBudget
from fedglass.core.optimisers import SGD, Adam, AdamW
from fedglass.core.rng import stream
from fedglass.core.types import Observation, Training
from fedglass.recipes import recipe


def read(observation: Observation) -> ExactSolution | str:
    return adam_step(observation, SearchBudget(stream(0, "tests")))


@pytest.mark.parametrize(
    ("optimiser", "explains"), [(Adam(), True), (Adam(weight_decay=1e-4), False), (AdamW(), True)], ids=repr
)
def test_one_image_is_read_from_a_step(plain: Any, optimiser: Adam | AdamW, explains: bool) -> None:
    """Where Adam adds the decay to the gradient, units that are off move too, by what rounding decides."""
    images, labels = plain.pictures(1)
    found = recipe("exact").run(plain.seen(plain.dense(64), images, labels, Training(lr=1e-3, optimiser=optimiser)))
    assert (found.method, found.explains) == ("adam_step", explains)
    assert plain.psnr(found, images)[0] > 55


@pytest.mark.parametrize(("lr", "least"), [(1e-4, 35), (1e-5, 15)])
def test_smaller_steps_show_less(plain: Any, lr: float, least: float) -> None:
    images, labels = plain.pictures(1)
    found = read(plain.seen(plain.dense(64), images, labels, Training(lr=lr, optimiser=Adam())))
    assert least < plain.psnr(found, images)[0] < 55


def test_steps_of_equal_size_explain_no_image(plain: Any) -> None:
    """In half precision the signs alone are left, and a picture of the signs would give the same message."""
    images, labels = plain.pictures(1)
    made = plain.seen(plain.dense(), images, labels, Training(lr=1e-3, optimiser=Adam()))
    found = read(replace(made, update={name: tensor.bfloat16().float() for name, tensor in made.update.items()}))
    assert isinstance(found, str) or not found.explains


@pytest.mark.parametrize(
    ("count", "training", "why"),
    [
        (1, Training(lr=1e-3, optimiser=SGD()), "not Adam"),
        (2, Training(lr=1e-3, optimiser=Adam()), "one example and one local step"),
        (1, Training(lr=1e-3, optimiser=Adam(), epochs=2), "one example and one local step"),
    ],
)
def test_why_it_does_not_apply(plain: Any, count: int, training: Training, why: str) -> None:
    images, labels = plain.pictures(count)
    assert why in str(read(plain.seen(plain.dense(), images, labels, training)))
