"""Distances that treat layers or parts of the message differently, against slow oracles."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from fedglass.attack.parts import Binding, Evaluation
from fedglass.attack.terms.distance import Cosine, GaussianKernel, GrowingCosine, LayeredCosine, PartialMatch
from fedglass.attack.terms.term import Term
from fedglass.core.rng import stream
from fedglass.core.types import Candidate, Whitening

NAMES = ("conv.weight", "conv.bias", "middle.weight", "fc.weight", "fc.bias")
SHAPES = [(4, 2, 3, 3), (4,), (3, 4), (5, 3), (5,)]
DEPTHS = [0, 0, 1, 2, 2]
ALL = GrowingCosine(first=1.0, last=1.0, kept=1.0)


Place = tuple[Binding, Evaluation]
"""What a term is bound to, and where it is evaluated."""


def energy(term: Term, place: Place) -> Tensor:
    return term.bind(place[0])(place[1])


def drawn(name: str) -> list[Tensor]:
    return [torch.randn(s, generator=stream(0, name, i), dtype=torch.float64) for i, s in enumerate(SHAPES)]


def at(g: Sequence[Tensor], y: Sequence[Tensor], progress: float = 1.0) -> Place:
    candidate = Candidate(torch.zeros(1, 2, 1, 4, 4, dtype=torch.float64), torch.zeros(2).long())
    return Binding(tuple(y), NAMES, Whitening((0.0,), (1.0,)), (1, 4, 4)), Evaluation(g, candidate, progress)


@pytest.mark.parametrize("term", [GaussianKernel(), LayeredCosine(), ALL, GrowingCosine(), PartialMatch()], ids=repr)
def test_equal_messages_have_no_distance_and_others_have_one(term: Term) -> None:
    g, y = drawn("g"), drawn("y")
    assert float(energy(term, at(y, y))) == pytest.approx(0.0, abs=1e-7)
    assert float(energy(term, at(g, y))) > 0.01


@pytest.mark.parametrize("width", [1.0, 4.0])
def test_the_kernel_is_that_of_each_layer_in_units_of_its_variance(width: float) -> None:
    g, y = drawn("g"), drawn("y")
    slow = sum(
        (1 - math.exp(-float((a - b).square().mean()) / (width * float(b.var(unbiased=False))))) / (1 + d)
        for a, b, d in zip(g, y, DEPTHS, strict=True)
    )
    assert float(energy(GaussianKernel(width), at(g, y))) == pytest.approx(slow)


def test_the_kernel_adapts_to_the_size_of_the_message_and_saturates() -> None:
    g, y = drawn("g"), drawn("y")
    here = energy(GaussianKernel(), at(g, y))
    torch.testing.assert_close(energy(GaussianKernel(), at([1e-4 * t for t in g], [1e-4 * t for t in y])), here)
    far = energy(GaussianKernel(), at([1e6 * t for t in g], y))
    assert float(far) == pytest.approx(sum(1 / (1 + d) for d in DEPTHS))


def test_the_kernel_of_a_layer_without_variance_is_finite() -> None:
    g, y = [t.requires_grad_() for t in drawn("g")], drawn("y")
    y[1] = torch.zeros_like(y[1])
    value = energy(GaussianKernel(), at(g, y))
    assert all(bool(t.isfinite().all()) for t in torch.autograd.grad(value, g))


@pytest.mark.parametrize("weight", [1.0, 0.3])
def test_layers_of_equal_weight_are_the_plain_cosine(weight: float) -> None:
    here = at(drawn("g"), drawn("y"))
    torch.testing.assert_close(energy(LayeredCosine(weight, weight), here), energy(Cosine(), here))


def test_the_weights_of_the_cosine_are_linear_in_depth() -> None:
    g, y = drawn("g"), drawn("y")
    weights = [0.5 + 0.25 * d for d in DEPTHS]
    left, right = (
        torch.cat([math.sqrt(w) * t.flatten() for w, t in zip(weights, tensors, strict=True)]) for tensors in (g, y)
    )
    torch.testing.assert_close(energy(LayeredCosine(0.5, 1.0), at(g, y)), 1 - F.cosine_similarity(left, right, dim=0))
    scaled = at([7 * t for t in g], [0.1 * t for t in y])
    torch.testing.assert_close(energy(LayeredCosine(), scaled), energy(LayeredCosine(), at(g, y)))


@pytest.mark.parametrize("progress", [0.0, 0.5, 1.0])
def test_the_whole_message_has_the_plain_cosine(progress: float) -> None:
    here = at(drawn("g"), drawn("y"), progress)
    torch.testing.assert_close(energy(ALL, here), energy(Cosine(), here))


def test_the_part_grows_from_the_output() -> None:
    term = GrowingCosine(first=0.2, last=0.8, until=0.5, kept=1.0)
    assert [term.tensors(5, share) for share in (0.0, 0.01, 0.25, 0.5, 1.0)] == [1, 2, 3, 4, 4]
    g, y = drawn("g"), drawn("y")
    for progress, counted in ((0.0, 1), (0.25, 3), (1.0, 4)):
        left, right = (torch.cat([t.flatten() for t in tensors[-counted:]]) for tensors in (g, y))
        slow = 1 - F.cosine_similarity(left, right, dim=0)
        torch.testing.assert_close(energy(term, at(g, y, progress)), slow)


def test_random_entries_change_on_the_way_and_repeat_from_the_seed() -> None:
    g, y = drawn("g"), drawn("y")
    term = GrowingCosine(first=1.0, last=1.0, kept=0.7)
    values = [float(energy(term, at(g, y, k / 50))) for k in range(50)]
    assert values == [float(energy(term, at(g, y, k / 50))) for k in range(50)]
    assert len(set(values)) == 50
    assert float(energy(replace(term, seed=1), at(g, y, 0.0))) != values[0]


def test_without_a_cut_the_partial_match_is_size_and_direction_of_each_layer() -> None:
    g, y = drawn("g"), drawn("y")
    slow = sum(
        float((a - b).abs().mean()) + 1 - float(F.cosine_similarity(a.flatten(), b.flatten(), dim=0))
        for a, b in zip(g, y, strict=True)
    )
    assert float(energy(PartialMatch(dropped=0.0), at(g, y))) == pytest.approx(slow)


def test_the_smaller_entries_of_the_candidate_do_not_count() -> None:
    g, y = drawn("g"), drawn("y")
    small = [a.abs() < a.flatten().abs().quantile(0.5, interpolation="lower") for a in g]
    assert all(bool(s.any()) for s in small)
    changed = [b.masked_fill(s, 100.0) for b, s in zip(y, small, strict=True)]
    assert torch.equal(energy(PartialMatch(), at(g, changed)), energy(PartialMatch(), at(g, y)))
    assert float(energy(PartialMatch(dropped=0.0), at(g, changed))) > 10


def test_a_layer_that_sends_nothing_leaves_the_partial_match_finite() -> None:
    g, y = drawn("g"), drawn("y")
    g[1] = torch.zeros_like(g[1])
    leaves = [t.requires_grad_() for t in g]
    value = energy(PartialMatch(), at(leaves, y))
    assert all(bool(t.isfinite().all()) for t in torch.autograd.grad(value, leaves))
