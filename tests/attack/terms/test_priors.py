"""Priors against explicit loops."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from fedglass.attack.parts import Binding, Evaluation
from fedglass.attack.terms.priors import (
    AbsoluteEpochPrior,
    CircularTotalVariation,
    ClipPenalty,
    ConvMax,
    ConvMean,
    EpochSummary,
    Max,
    Mean,
    PixelVariation,
    RelativeVariation,
    SquaredEpochPrior,
    TotalVariation,
    UsualContrast,
    random_kernel,
)
from fedglass.attack.terms.term import Term
from fedglass.core.rng import stream
from fedglass.core.types import Candidate, Whitening

WHITENING = Whitening((0.4, 0.6), (0.3, 0.2))
SUMMARIES = [Mean(), Max(), ConvMean(channels=7), ConvMax(channels=7)]


Place = tuple[Binding, Evaluation]
"""What a term is bound to, and where it is evaluated."""


def energy(term: Term, place: Place) -> Tensor:
    return term.bind(place[0])(place[1])


def at(images: Tensor) -> Place:
    target = torch.zeros(1, dtype=images.dtype)
    c, h, w = images.shape[-3:]
    candidate = Candidate(images, torch.zeros(images.shape[1]).long())
    return Binding((target,), ("weight",), WHITENING, (c, h, w)), Evaluation((), candidate)


def drawn(*shape: int) -> Tensor:
    return torch.randn(shape, generator=stream(0, "images", *shape), dtype=torch.float64)


def each_plane(images: Tensor) -> list[list[list[float]]]:
    return [plane.tolist() for plane in images.flatten(0, 2)]


def slow_l1(images: Tensor) -> float:
    planes = each_plane(images)
    height, width = images.shape[-2:]
    across = [abs(p[i][j + 1] - p[i][j]) for p in planes for i in range(height) for j in range(width - 1)]
    down = [abs(p[i + 1][j] - p[i][j]) for p in planes for i in range(height - 1) for j in range(width)]
    return sum(across) / len(across) + sum(down) / len(down)


def slow_circular(images: Tensor) -> float:
    height, width = images.shape[-2:]
    total = sum(
        (p[i][j] - p[i][j - 1]) ** 2 + (p[i][j] - p[i - 1][j]) ** 2
        for p in each_plane(images)
        for i in range(height)
        for j in range(width)
    )
    return total / (images.shape[0] * images.shape[1])


def slow_isotropic(images: Tensor, exponent: float) -> float:
    height, width = images.shape[-2:]
    terms = [
        ((p[i][j + 1] - p[i][j]) ** 2 + (p[i + 1][j] - p[i][j]) ** 2) ** (exponent / 2)
        for p in each_plane(images)
        for i in range(height - 1)
        for j in range(width - 1)
    ]
    return float(sum(terms)) / len(terms)


def slow_pixels(images: Tensor, exponent: float) -> float:
    deviation = torch.tensor(WHITENING.std, dtype=images.dtype).view(-1, 1, 1)
    pairs = images.shape[2] * (images.shape[-2] - 1) * (images.shape[-1] - 1)
    return pairs * slow_isotropic(deviation * images, exponent)


@pytest.mark.parametrize("shape", [(1, 2, 2, 5, 4), (3, 2, 2, 4, 6)])
@pytest.mark.parametrize("exponent", [2.0, 4.0])
def test_variation_of_pixels_is_a_sum_in_pixel_units(exponent: float, shape: tuple[int, ...]) -> None:
    images = drawn(*shape)
    term = PixelVariation(exponent)
    assert float(energy(term, at(images))) == pytest.approx(slow_pixels(images, exponent), rel=1e-5)


@pytest.mark.parametrize("shape", [(1, 2, 1, 5, 4), (3, 2, 2, 4, 6)])
@pytest.mark.parametrize(
    ("term", "slow"),
    [
        (TotalVariation(), slow_l1),
        (TotalVariation(share=0.5), lambda x: 0.5 * slow_l1(x)),
        (CircularTotalVariation(), slow_circular),
    ],
)
def test_total_variation_is_that_of_a_loop(term: Term, slow: Callable[[Tensor], float], shape: tuple[int, ...]) -> None:
    images = drawn(*shape)
    assert float(energy(term, at(images))) == pytest.approx(slow(images))


@pytest.mark.parametrize("term", [TotalVariation(), CircularTotalVariation(), PixelVariation()], ids=repr)
def test_a_constant_picture_has_no_variation(term: Term) -> None:
    images = torch.full((2, 3, 2, 6, 6), 0.7, requires_grad=True)
    value = energy(term, at(images))
    assert float(value.detach()) == pytest.approx(0.0, abs=1e-9)
    (gradient,) = torch.autograd.grad(value, images)
    assert torch.isfinite(gradient).all()
    assert not gradient.any()


@pytest.mark.parametrize("term", [TotalVariation(), CircularTotalVariation()], ids=repr)
def test_variation_ignores_a_shift_of_all_pixels_and_mirrors(term: Term) -> None:
    images = drawn(1, 2, 1, 5, 5)
    here = energy(term, at(images))
    torch.testing.assert_close(energy(term, at(images + 3.0)), here)
    torch.testing.assert_close(energy(term, at(images.flip(-1))), here)
    torch.testing.assert_close(energy(term, at(images.transpose(-1, -2))), here)


def test_the_circular_variation_ignores_a_roll() -> None:
    images = drawn(1, 2, 1, 5, 5)
    rolled = images.roll((2, 3), dims=(-2, -1))
    torch.testing.assert_close(
        energy(CircularTotalVariation(), at(rolled)), energy(CircularTotalVariation(), at(images))
    )


def test_the_clip_penalty_counts_excursions_of_pixels() -> None:
    pixels = torch.tensor([[0.0, 1.0], [1.5, -0.25]], dtype=torch.float64).view(1, 1, 1, 2, 2).expand(1, 3, 2, 2, 2)
    value = energy(ClipPenalty(), at(WHITENING.whiten(pixels)))
    assert float(value) == pytest.approx(2 * (0.25 + 0.0625))  # both channels, mean over the three images
    assert float(energy(ClipPenalty(low=-0.25, high=1.5), at(WHITENING.whiten(pixels)))) == pytest.approx(0, abs=1e-24)


def slow_summary(summary: EpochSummary, epoch: Tensor) -> Tensor:
    """g of one epoch's images, image by image.  # (n, c, h, w)"""
    if isinstance(summary, ConvMean | ConvMax):
        kernel = random_kernel(summary.channels, summary.seed, at(epoch[None])[0])
        epoch = torch.stack([F.conv2d(image[None], kernel, padding=1)[0] for image in epoch])
    stacked = torch.stack(list(epoch))
    return stacked.mean(0) if isinstance(summary, Mean | ConvMean) else stacked.max(0).values


@pytest.mark.parametrize("summary", SUMMARIES, ids=repr)
@pytest.mark.parametrize("epochs", [1, 2, 5])
@pytest.mark.parametrize("power", [1, 2])
def test_the_epoch_prior_is_the_double_loop_over_epochs(summary: EpochSummary, epochs: int, power: int) -> None:
    images = drawn(epochs, 3, 2, 5, 4)
    g = [slow_summary(summary, epoch) for epoch in images]
    slow = sum((a - b).abs().pow(power).mean() for a, b in product(g, g)) / epochs**2
    prior = AbsoluteEpochPrior(summary) if power == 1 else SquaredEpochPrior(summary)
    torch.testing.assert_close(energy(prior, at(images)), torch.as_tensor(slow))


@pytest.mark.parametrize("summary", SUMMARIES, ids=repr)
@pytest.mark.parametrize("make", [AbsoluteEpochPrior, SquaredEpochPrior])
def test_the_epoch_prior_ignores_the_order_of_images_and_epochs(summary: EpochSummary, make: Any) -> None:
    images = drawn(4, 5, 2, 4, 4)
    here = energy(make(summary), at(images))
    shuffled = torch.stack([epoch[torch.randperm(5, generator=stream(i, "o"))] for i, epoch in enumerate(images)])
    torch.testing.assert_close(energy(make(summary), at(shuffled)), here)
    torch.testing.assert_close(energy(make(summary), at(images.flip(0))), here)
    repeated = images[:1].expand(4, -1, -1, -1, -1)
    assert float(energy(make(summary), at(repeated))) == pytest.approx(0.0, abs=1e-12)
    assert float(here) > 1e-3


@pytest.mark.parametrize("make", [AbsoluteEpochPrior, SquaredEpochPrior])
def test_the_gradient_of_the_epoch_prior_is_that_of_the_double_loop(make: Any) -> None:
    images = drawn(4, 3, 1, 4, 4).requires_grad_()
    power = 1 if make is AbsoluteEpochPrior else 2
    g = [slow_summary(Mean(), epoch) for epoch in images]
    slow = torch.stack([(a - b).abs().pow(power).mean() for a, b in product(g, g)]).mean()
    one, other = (torch.autograd.grad(e, images)[0] for e in (energy(make(Mean()), at(images)), slow))
    torch.testing.assert_close(one, other)


def test_the_random_kernel_is_drawn_from_its_seed() -> None:
    images = drawn(2, 3, 2, 4, 4)
    binding, _ = at(images)
    first = ConvMax(seed=3).bind(binding)(images)
    assert torch.equal(ConvMax(seed=3).bind(binding)(images), first)
    assert not torch.equal(ConvMax(seed=4).bind(binding)(images), first)
    kernel = random_kernel(96, 3, binding)
    assert kernel.shape == (96, 2, 3, 3)
    assert kernel.dtype == images.dtype
    assert float(kernel.var()) == pytest.approx(1 / 18, rel=0.1)


def test_relative_variation_does_not_see_the_contrast_and_is_total_variation_at_the_usual_one() -> None:
    images = drawn(1, 2, 2, 5, 4)
    usual = images / images.square().mean().sqrt()
    assert torch.allclose(energy(RelativeVariation(), at(3 * images)), energy(RelativeVariation(), at(images)))
    assert torch.allclose(energy(RelativeVariation(), at(usual)), energy(TotalVariation(), at(usual)))


def test_the_usual_contrast_is_that_of_whitened_data() -> None:
    images = drawn(1, 2, 2, 5, 4)
    usual = images / images.square().mean().sqrt()
    assert float(energy(UsualContrast(), at(usual))) == pytest.approx(0.0, abs=1e-12)
    assert float(energy(UsualContrast(), at(3 * usual))) == pytest.approx(4.0, abs=1e-6)
