"""The terms of coarse-to-fine inversion against slow oracles."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from fedglass.attack.parts import Binding, Evaluation
from fedglass.attack.terms.distance import Cosine, SquaredError, SupportCosine
from fedglass.attack.terms.priors import PixelVariation, ReweightedL1, SupportReweightedL1
from fedglass.attack.terms.term import After, ScaleRule, Term
from fedglass.core.rng import stream
from fedglass.core.types import Candidate, Whitening

NAMES = ("conv.weight", "conv.bias", "fc.weight")
SHAPES = [(4, 2, 3, 3), (4,), (5, 3)]


Place = tuple[Binding, Evaluation]
"""What a term is bound to, and where it is evaluated."""


def energy(term: Term, place: Place) -> Tensor:
    return term.bind(place[0])(place[1])


def drawn(name: str, zeros: float = 0.0) -> list[Tensor]:
    full = [torch.randn(s, generator=stream(0, name, i), dtype=torch.float64) for i, s in enumerate(SHAPES)]
    holes = [torch.rand(s, generator=stream(1, name, i)) < zeros for i, s in enumerate(SHAPES)]
    return [t.masked_fill(hole, 0.0) for t, hole in zip(full, holes, strict=True)]


def at(g: Sequence[Tensor], y: Sequence[Tensor], progress: float = 1.0, size: tuple[int, int] = (4, 4)) -> Place:
    images = torch.randn(1, 2, 1, *size, generator=stream(0, "images"), dtype=torch.float64)
    binding = Binding(tuple(y), NAMES, Whitening((0.0,), (1.0,)), (1, *size))
    return binding, Evaluation(g, Candidate(images, torch.zeros(2).long()), progress)


def pairs(g: Sequence[Tensor], y: Sequence[Tensor]) -> list[tuple[float, float]]:
    return [
        (float(a), float(b)) for p, q in zip(g, y, strict=True) for a, b in zip(p.flatten(), q.flatten(), strict=True)
    ]


def test_on_full_support_the_support_cosine_is_the_cosine() -> None:
    here = at(drawn("g"), drawn("y"))
    torch.testing.assert_close(energy(SupportCosine(), here), energy(Cosine(), here))


def test_the_support_cosine_forgets_where_the_target_is_zero() -> None:
    g, y = drawn("g"), drawn("y", zeros=0.4)
    kept = [(a, b) for a, b in pairs(g, y) if b != 0]
    assert 0 < len(kept) < len(pairs(g, y))
    product = sum(a * b for a, b in kept)
    slow = 1 - product / math.sqrt(sum(a * a for a, _ in kept)) / math.sqrt(sum(b * b for _, b in kept))
    assert float(energy(SupportCosine(), at(g, y))) == pytest.approx(slow)
    elsewhere = [torch.where(q == 0, 100 * p, p) for p, q in zip(g, y, strict=True)]
    assert float(energy(SupportCosine(), at(elsewhere, y))) == pytest.approx(slow)
    assert float(energy(SupportCosine(), at([3 * q for q in y], y))) == pytest.approx(0.0, abs=1e-12)


def test_the_reweighted_error_is_relative_where_the_target_is_large() -> None:
    g, y = drawn("g"), drawn("y", zeros=0.2)
    slow = [abs(a - b) / (1 + abs(b)) for a, b in pairs(g, y)]
    assert float(energy(ReweightedL1(), at(g, y))) == pytest.approx(sum(slow) / len(y))  # of tensors
    assert float(energy(ReweightedL1(), at(y, y))) == 0.0
    zero = [torch.zeros_like(t) for t in y]
    entries = torch.cat([t.flatten().abs() for t in g])
    torch.testing.assert_close(energy(ReweightedL1(), at(g, zero)), entries.sum() / len(g))  # absolute
    far = [1e9 * t.sign() for t in g]
    off = [1.25 * t for t in far]
    relative = torch.tensor(0.25 * len(entries) / len(g), dtype=torch.float64)
    torch.testing.assert_close(energy(ReweightedL1(), at(off, far)), relative)


def test_the_size_on_the_support_forgets_where_nothing_was_sent() -> None:
    g, y = drawn("g"), drawn("y", zeros=0.4)
    slow = sum(abs(a - b) / (1 + abs(b)) for a, b in pairs(g, y) if b != 0) / len(y)
    assert float(energy(SupportReweightedL1(), at(g, y))) == pytest.approx(slow, rel=1e-12)
    full = drawn("y")
    torch.testing.assert_close(energy(SupportReweightedL1(), at(g, full)), energy(ReweightedL1(), at(g, full)))


def test_a_term_after_a_share_of_the_way_is_nothing_before_and_itself_from_there_on() -> None:
    g, y = drawn("g"), drawn("y")
    term = After(SquaredError(), 0.6)
    assert [float(energy(term, at(g, y, progress))) for progress in (0.0, 0.3, 0.599)] == [0.0, 0.0, 0.0]
    for progress in (0.6, 3 / 5, 0.8, 1.0):
        assert torch.equal(energy(term, at(g, y, progress)), energy(SquaredError(), at(g, y, progress)))


def test_the_scale_rule_gives_the_stated_weight_and_never_a_negative_one() -> None:
    rule = ScaleRule(PixelVariation())
    assert round(rule.weight(32, 32), 4) == 0.0002  # as the paper states for CIFAR
    assert rule.weight(224, 224) == pytest.approx(0.0005 - 0.00008 * math.log(224))
    assert rule.weight(16, 64) == pytest.approx(rule.weight(32, 32))
    assert rule.weight(1000, 1000) == 0.0
    here = at((), (), size=(6, 9))
    torch.testing.assert_close(energy(rule, here), rule.weight(6, 9) * energy(rule.term, here))


def test_the_fourth_power_of_the_variation_is_the_square_of_the_squares() -> None:
    here = at((), ())
    x = here[1].candidate.images[0, :, 0]
    slow = [
        (float(p[i, j + 1] - p[i, j]) ** 2 + float(p[i + 1, j] - p[i, j]) ** 2) ** 2
        for p in x
        for i in range(3)
        for j in range(3)
    ]
    assert float(energy(PixelVariation(), here)) == pytest.approx(sum(slow) / len(x), rel=1e-6)
