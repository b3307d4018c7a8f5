"""Structured noise leaves the image readable, and independent noise never does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedglass.attack.exact.exact import FOUND_NOTHING, ExactSolution, SearchBudget
from fedglass.attack.exact.weak_noise import weak_noise
from fedglass.core.rng import stream
from fedglass.core.types import Observation, Training, Whitening
from fedglass.recipes import recipe

Draw = Callable[[Tensor, torch.Generator], Tensor]
"""Noise of size 1 like a tensor."""


def normal(like: Tensor, generator: torch.Generator) -> Tensor:
    return torch.randn(like.shape, generator=generator)


def some_rows(like: Tensor, generator: torch.Generator) -> Tensor:
    noise = normal(like, generator)
    noise[:8] = 0
    return noise


def centred(like: Tensor, generator: torch.Generator) -> Tensor:
    noise = normal(like, generator)
    return noise - noise.mean(0, keepdim=True)


def opposite(like: Tensor, generator: torch.Generator) -> Tensor:
    noise = normal(like, generator)
    noise[1::2] = -noise[::2]
    return noise


def half_of_it(like: Tensor, generator: torch.Generator) -> Tensor:
    return normal(like, generator) * (torch.rand(like.shape, generator=generator) < 0.5)


FLAWED: dict[str, Draw] = {
    "rows without noise": some_rows,
    "sum of all rows": centred,
    "pairs of rows": opposite,
    "offsets from multiples of a step": lambda like, generator: (30 * normal(like, generator)).round() / 30,
    "offsets from numbers of bfloat16": lambda like, generator: normal(like, generator).bfloat16().float(),
    "entries without noise": half_of_it,
    "without the noise of seed 7, restarted for each tensor": lambda like, _: normal(
        like, torch.Generator().manual_seed(7)
    ),
}


def noisy(message: Observation, draw: Draw, std: float = 1.0, seed: int = 0) -> Observation:
    generator = stream(seed, "tests", "weak noise")
    return replace(message, update={name: t + std * draw(t, generator) for name, t in message.update.items()})


def solved(message: Observation) -> ExactSolution | None:
    solution = weak_noise(message, SearchBudget(stream(0, "tests")))
    if isinstance(solution, str):
        assert solution == FOUND_NOTHING, "the method applies"
        return None
    return solution


@pytest.mark.parametrize("activation", [nn.ReLU, nn.Tanh])
@pytest.mark.parametrize("how", FLAWED)
def test_flawed_noise_hides_nothing(plain: Any, how: str, activation: type[nn.Module]) -> None:
    images, labels = plain.pictures(1)
    message = plain.seen(plain.dense(activation=activation), images, labels, Training(lr=0.01, epochs=2))
    found = solved(noisy(message, FLAWED[how]))
    assert found is not None
    assert found.explains
    assert found.details["how"] == how
    assert found.labels.tolist() == labels.tolist()
    assert plain.psnr(found, images)[0] > 60


@pytest.mark.parametrize("together", [False, True], ids=["tensor by tensor", "all at once"])
def test_the_order_of_a_common_seed_is_found(plain: Any, together: bool) -> None:
    images, labels = plain.pictures(1)
    message = plain.seen(plain.dense(width=101), images, labels, Training(lr=0.05))
    generator = torch.Generator().manual_seed(42)
    drawn = torch.randn(sum(t.numel() for t in message.update.values()), generator=generator)
    update, first = {}, 0
    generator.manual_seed(42)
    for name, t in message.update.items():
        part = drawn[first : first + t.numel()].view_as(t)
        update[name] = t + (part if together else torch.randn(t.shape, generator=generator))
        first += t.numel()
    found = recipe("exact").run(replace(message, update=update))
    assert (found.method, found.explains) == ("weak_noise", True)
    assert plain.psnr(found, images)[0] > 60


def test_random_signs_are_no_secret_where_no_input_is_negative(plain: Any) -> None:
    images, labels = plain.pictures(1)
    message = plain.seen(plain.dense(), 0.25 * images + 0.5, labels, Training(lr=0.05))  # fed the images themselves
    message = replace(message, knows=replace(message.knows, whitening=Whitening((0.0,) * 3, (1.0,) * 3)))
    found = solved(replace(message, update={n: t * normal(t, stream(0, n)).sign() for n, t in message.update.items()}))
    assert found is not None
    assert found.explains
    assert plain.psnr(found, images)[0] > 60


def test_entries_without_noise_are_found_next_to_black_pixels(plain: Any) -> None:
    """Most entries without noise are zeros then, and tell nothing of the factors."""
    images, labels = plain.pictures(1)
    images = (images - images.flatten().kthvalue(int(0.7 * images.numel())).values).clamp(min=0)
    message = plain.seen(plain.dense(activation=nn.Sigmoid), 0.25 * images + 0.5, labels, Training(lr=0.1))
    message = replace(message, knows=replace(message.knows, whitening=Whitening((0.0,) * 3, (1.0,) * 3)))
    found = solved(noisy(message, half_of_it, std=10.0))
    assert found is not None
    assert found.explains
    assert plain.psnr(found, images)[0] > 60


def test_pixels_that_noise_covers_in_every_row_are_filled_in_without_a_claim(plain: Any) -> None:
    """Noise on every second entry of an even width covers every second pixel."""

    def every_second(like: Tensor, generator: torch.Generator) -> Tensor:
        noise = normal(like, generator)
        noise.view(-1)[::2] = 0
        return noise

    images, labels = plain.pictures(1)
    found = solved(noisy(plain.seen(plain.dense(), images, labels, Training(lr=0.01)), every_second))
    assert found is not None
    assert not found.explains
    assert found.details["share_seen"] == 0.5
    assert plain.psnr(found, images)[0] > 20


def test_independent_noise_is_never_read(plain: Any) -> None:
    """At 200 draws, on wide layers and narrow ones, from noise that hides all to noise of the update's own size."""
    images, labels = plain.pictures(1)
    messages = [plain.seen(plain.dense(width), images, labels, Training(lr=0.05)) for width in (16, 64)]
    for seed in range(200):
        message = messages[seed % 2]
        assert solved(noisy(message, normal, 10.0 ** -(seed % 4), seed)) is None


def test_signs_of_adam_are_no_image(plain: Any) -> None:
    """All rows of signs agree at rounding level; the replay is what refuses them."""
    images, labels = plain.pictures(1)
    message = plain.seen(plain.dense(activation=nn.Tanh), images, labels, Training(lr=0.05))
    assert solved(replace(message, update={name: 0.05 * t.sign() for name, t in message.update.items()})) is None
