"""Matching ignores order, is optimal, and copes with too few, too many and broken reconstructions."""

from __future__ import annotations

from itertools import permutations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedglass.core.errors import DataError
from fedglass.core.rng import stream
from fedglass.core.tensors import assign, squared_distances
from fedglass.metrics.catalogue import Matching, match, match_by_psnr
from fedglass.metrics.images import mse, psnr

BOTH = pytest.mark.parametrize("rule", [match, match_by_psnr])


def images(n: int, name: str = "images") -> Tensor:
    return torch.rand(n, 1, 4, 4, generator=stream(3, name))


@BOTH
@given(st.permutations(range(5)))
@settings(deadline=None, max_examples=30)
def test_order_does_not_matter(rule, order: list[int]):
    truth, guess = images(5), images(5) + 0.3 * images(5, "noise")
    sorted_once = rule(guess, truth).apply(guess)
    torch.testing.assert_close(rule(guess[order], truth).apply(guess[order]), sorted_once)
    torch.testing.assert_close(rule(guess, truth[order]).apply(guess), sorted_once[order])


@BOTH
@pytest.mark.parametrize(("m", "n"), [(4, 4), (3, 5), (5, 3)])
def test_no_other_pairing_is_better(rule, m: int, n: int):
    guess, truth = images(m, "guess"), images(n)
    cost = {match: mse, match_by_psnr: lambda a, b: -psnr(a, b)}[rule]
    table = torch.stack([cost(g.expand_as(truth), truth) for g in guess])
    short, long = min(m, n), max(m, n)
    wide = table if m <= n else table.T
    best = min(sum(wide[i, p[i]] for i in range(short)) for p in permutations(range(long), short))
    found = [table[p, i] for i, p in enumerate(rule(guess, truth).partner) if p is not None]
    assert len(found) == short
    assert sum(found) == pytest.approx(float(best))


def test_the_cost_is_the_mean_squared_distance_of_core():
    guess, truth = images(4, "guess"), images(6)
    table = torch.stack([mse(g.expand_as(truth), truth) for g in guess])
    torch.testing.assert_close(table, squared_distances(guess, truth))


def test_the_two_rules_differ_where_one_pair_is_perfect():
    # In order the errors are 0 and 1 (100 + 0 dB), crosswise 0.25 and 0.25 (6 + 6 dB).
    truth, guess = torch.tensor([0.5, 1.0]).view(2, 1, 1, 1), torch.tensor([0.5, 0.0]).view(2, 1, 1, 1)
    assert match_by_psnr(guess, truth).partner == (0, 1)
    assert match(guess, truth).partner == (1, 0)


@BOTH
def test_too_few_leave_originals_without_a_partner(rule):
    truth = images(4)
    found = rule(truth[[2, 0]], truth)
    assert found == Matching((1, None, 0, None))
    ordered = found.apply(truth[[2, 0]])
    assert torch.equal(ordered[[0, 2]], truth[[0, 2]])
    assert torch.isnan(ordered[[1, 3]]).all()


@BOTH
def test_none_at_all_leaves_every_original_without(rule):
    assert rule(images(0), images(2)) == Matching((None, None))
    assert Matching((None, None)).apply(images(0)).shape == (2, 1, 4, 4)


@BOTH
def test_too_many_leave_the_worst_over(rule):
    truth = images(2)
    assert rule(torch.cat([1 - truth, truth]), truth).partner == (2, 3)


@BOTH
def test_broken_reconstructions_are_taken_last(rule):
    truth = images(3)
    guess = torch.cat([torch.full((2, 1, 4, 4), torch.nan), truth.flip(0)])
    assert rule(guess, truth).partner == (4, 3, 2)
    assert sorted(rule(guess[:3], truth).partner) == [0, 1, 2]
    assert rule(guess[:3], truth).partner[2] == 2


@BOTH
def test_the_pairing_is_that_of_each_pair_computed_by_itself(rule):
    truth = torch.rand(40, 3, 8, 8, generator=stream(3, "many"))
    guess = (truth + torch.randn(truth.shape, generator=stream(3, "noise")))[:35].flip(0)
    guess[:5] = truth[:5]
    guess[5, 0, 0, 0], guess[6], guess[7, 1], guess[8] = torch.nan, torch.nan, torch.inf, 1e9
    cost = {match: mse, match_by_psnr: lambda a, b: -psnr(a, b)}[rule]
    table = torch.stack([cost(g.expand_as(truth), truth) for g in guess])
    partner: list[int | None] = [None] * 40
    for row, column in enumerate(assign(table).tolist()):
        partner[column] = row
    assert rule(guess, truth).partner == tuple(partner)


def test_wrong_shapes_are_refused():
    with pytest.raises(DataError, match=r"Expected reconstructions of shape \(1, 4, 4\).*got \(1, 3, 4\)"):
        match(images(2)[:, :, :3], images(2))
    with pytest.raises(DataError, match="at least one original"):
        match(images(2), images(0))
    with pytest.raises(DataError, match="at least 6, got 2"):
        Matching((5,)).apply(images(2))
