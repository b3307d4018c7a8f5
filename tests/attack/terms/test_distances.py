"""Distances against slow oracles."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from fedglass.attack.parts import Binding, Evaluation
from fedglass.attack.terms.distance import Cosine, LayeredSquaredError, Ramp, SquaredError
from fedglass.attack.terms.priors import TotalVariation
from fedglass.attack.terms.term import Scaled, Sum, Term
from fedglass.core.rng import stream
from fedglass.core.types import Candidate, Whitening

NAMES = ("conv1.weight", "conv1.bias", "block.conv2.weight", "fc.weight", "fc.bias")
SHAPES = [(4, 2, 3, 3), (4,), (3, 4), (5, 3), (5,)]


Place = tuple[Binding, Evaluation]
"""What a term is bound to, and where it is evaluated."""


def energy(term: Term, place: Place) -> Tensor:
    return term.bind(place[0])(place[1])


def drawn(name: str) -> list[Tensor]:
    return [torch.randn(s, generator=stream(0, name, i), dtype=torch.float64) for i, s in enumerate(SHAPES)]


def at(
    predicted: Sequence[Tensor], target: Sequence[Tensor], rows: int = 1, batches: int = 1, progress: float = 1.0
) -> Place:
    candidate = Candidate(torch.zeros(rows, 2, 1, 4, 4, dtype=torch.float64), torch.zeros(2).long())
    binding = Binding(tuple(target), NAMES, Whitening((0.0,), (1.0,)), (1, 4, 4), batches)
    return binding, Evaluation(predicted, candidate, progress)


def entries(tensors: Sequence[Tensor]) -> list[float]:
    return [float(v) for t in tensors for v in t.flatten()]


def test_squared_error_is_a_sum_over_entries() -> None:
    g, y = drawn("g"), drawn("y")
    slow = sum((a - b) ** 2 for a, b in zip(entries(g), entries(y), strict=True))
    assert float(energy(SquaredError(), at(g, y))) == pytest.approx(slow)
    assert float(energy(SquaredError(), at(y, y))) == 0.0


def test_cosine_is_that_of_the_flattened_message() -> None:
    g, y = drawn("g"), drawn("y")
    a, b = entries(g), entries(y)
    product = sum(p * q for p, q in zip(a, b, strict=True))
    slow = 1 - product / math.sqrt(sum(p * p for p in a)) / math.sqrt(sum(q * q for q in b))
    assert float(energy(Cosine(), at(g, y))) == pytest.approx(slow)


@pytest.mark.parametrize("scale", [1e-4, 1.0, 300.0])
def test_cosine_is_blind_to_scale(scale: float) -> None:
    g, y = drawn("g"), drawn("y")
    here = energy(Cosine(), at(g, y))
    torch.testing.assert_close(energy(Cosine(), at([scale * t for t in g], y)), here)
    torch.testing.assert_close(energy(Cosine(), at(g, [scale * t for t in y])), here)
    assert float(energy(Cosine(), at([scale * t for t in y], y))) == pytest.approx(0.0, abs=1e-12)
    assert float(energy(Cosine(), at([-t for t in y], y))) == pytest.approx(2.0)


@pytest.mark.parametrize("term", [Cosine(), SquaredError(), Cosine() + 0.5 * LayeredSquaredError()], ids=repr)
def test_a_bound_term_gives_the_same_at_every_call(term: Term) -> None:
    binding, here = at(drawn("g"), drawn("y"))
    bound = term.bind(binding)
    assert torch.equal(bound(here), bound(here))


def test_messages_of_another_number_of_tensors_are_refused() -> None:
    g, y = drawn("g"), drawn("y")
    for term in (Cosine(), SquaredError()):
        with pytest.raises(ValueError, match="zip"):
            energy(term, at(g[:-1], y))


def test_layers_are_weighed_from_the_input() -> None:
    g, y = drawn("g"), drawn("y")
    depths = [0, 0, 1, 2, 2]
    each = [float((a - b).square().sum()) for a, b in zip(g, y, strict=True)]
    slow = sum(math.exp(-d) * e for d, e in zip(depths, each, strict=True))
    assert float(energy(LayeredSquaredError(), at(g, y))) == pytest.approx(slow)
    slow = sum(math.exp(-0.5 * d) * e for d, e in zip(depths, each, strict=True))
    assert float(energy(LayeredSquaredError(decay=0.5), at(g, y))) == pytest.approx(slow)
    assert float(energy(LayeredSquaredError(decay=0.0), at(g, y))) == pytest.approx(sum(each))


@pytest.mark.parametrize(("rows", "batches"), [(1, 1), (1, 10), (5, 10)])
def test_layers_are_divided_by_the_batches_that_the_images_fill(rows: int, batches: int) -> None:
    g, y = drawn("g"), drawn("y")
    whole = float(energy(LayeredSquaredError(), at(g, y)))
    assert float(energy(LayeredSquaredError(), at(g, y, rows, batches))) == pytest.approx(whole / (rows * batches))


@pytest.mark.parametrize(("first", "last"), [(1.0, 2.0), (4.0, 2.0), (3.0, 3.0)])
def test_a_ramp_is_geometric_between_its_ends(first: float, last: float) -> None:
    g, y = drawn("g"), drawn("y")
    whole = float(energy(SquaredError(), at(g, y)))
    ramp = Ramp(SquaredError(), first, last, until=0.5)

    def weight(progress: float) -> float:
        return float(energy(ramp, at(g, y, progress=progress))) / whole

    assert weight(0.0) == pytest.approx(first)
    assert weight(0.25) == pytest.approx(math.sqrt(first * last))
    assert weight(0.5) == weight(0.75) == weight(1.0) == pytest.approx(last)
    assert float(energy(Ramp(SquaredError(), first, last, until=2.0), at(g, y))) / whole == pytest.approx(
        math.sqrt(first * last)
    )


@pytest.mark.parametrize("term", [Cosine(), SquaredError(), LayeredSquaredError()], ids=repr)
def test_messages_need_not_be_contiguous(term: Term) -> None:
    g, y = drawn("g"), drawn("y")
    a, b = ([t.transpose(0, -1).contiguous().transpose(0, -1) for t in tensors] for tensors in (g, y))
    assert not all(t.is_contiguous() for t in a)
    torch.testing.assert_close(energy(term, at(a, b)), energy(term, at(g, y)))


@pytest.mark.parametrize(
    ("make", "shown"),
    [
        (lambda: Cosine() + SquaredError(), "Cosine() + SquaredError()"),
        (lambda: 0.5 * Cosine(), "0.5 * Cosine()"),
        (lambda: Cosine() * 2, "2.0 * Cosine()"),
        (lambda: 2 * (Cosine() + SquaredError()), "2.0 * (Cosine() + SquaredError())"),
        (lambda: 2 * (0.5 * Cosine()), "2.0 * (0.5 * Cosine())"),
        (lambda: Cosine() + 3 * (2 * Cosine() + SquaredError()), "Cosine() + 3.0 * (2.0 * Cosine() + SquaredError())"),
        (lambda: (Cosine() + SquaredError()) + Cosine(), "Cosine() + SquaredError() + Cosine()"),
        (lambda: Cosine() + (SquaredError() + Cosine()), "Cosine() + SquaredError() + Cosine()"),
    ],
)
def test_sums_and_multiples_print_as_they_are_written(make: Callable[[], Term], shown: str) -> None:
    term = make()
    assert repr(term) == shown
    assert eval(shown) == term


def test_sums_add_and_multiples_scale() -> None:
    here = at(drawn("g"), drawn("y"))
    a, b = energy(Cosine(), here), energy(SquaredError(), here)
    torch.testing.assert_close(energy(Cosine() + 3 * SquaredError(), here), a + 3 * b)
    torch.testing.assert_close(energy(2 * (Cosine() + SquaredError()), here), 2 * (a + b))
    assert Sum((Cosine(), Scaled(2.0, Cosine()))) == Cosine() + 2 * Cosine()
    assert hash(Cosine() + 2 * TotalVariation()) == hash(Cosine() + 2 * TotalVariation())
