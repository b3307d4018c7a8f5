"""Optimal pairing against trying every permutation."""

from __future__ import annotations

from itertools import permutations

import pytest
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from fedglass.core.errors import unknown_name
from fedglass.core.rng import stream
from fedglass.core.tensors import assign, squared_distances


@pytest.mark.parametrize("columns", [4, 6])
def test_no_pairing_is_cheaper(columns: int) -> None:
    cost = torch.rand(4, columns, generator=stream(columns, "cost"))
    partner = assign(cost)
    assert len(set(partner.tolist())) == 4
    found = cost[torch.arange(4), partner].sum()
    best = min(cost[torch.arange(4), list(p)].sum() for p in permutations(range(columns), 4))
    torch.testing.assert_close(found, best)


def test_pairing_finds_a_shuffle() -> None:
    images = torch.rand(5, 1, 4, 4, generator=stream(0, "images"))
    order = torch.randperm(5, generator=stream(0, "order"))
    assert torch.equal(images[order][assign(squared_distances(images, images[order]))], images)


def test_a_cost_that_is_not_a_number_is_avoided() -> None:
    assert assign(torch.tensor([[torch.nan, 5.0], [1.0, torch.inf]])).tolist() == [1, 0]


def test_distances_are_those_of_a_double_loop() -> None:
    a, b = (torch.rand(n, 2, 3, generator=stream(n, "d")) for n in (3, 4))
    slow = torch.tensor([[(x - y).double().square().mean() for y in b] for x in a], dtype=torch.float64)
    torch.testing.assert_close(squared_distances(a, b), slow, rtol=1e-6, atol=0)


def by_loop(left: Tensor, right: Tensor) -> Tensor:
    return torch.stack([(a - right).double().square().flatten(1).mean(1) for a in left])


@pytest.mark.parametrize("offset", [0.0, 1e3])
def test_copies_and_near_copies_are_measured_exactly(offset: float) -> None:
    left = torch.rand(30, 3, 8, 8, generator=stream(0, "left"), dtype=torch.float64) + offset
    right = torch.cat([left[:10], left[10:20] + 1e-9, left[20:] + 0.1])
    found, slow = squared_distances(left, right), by_loop(left, right)
    assert (found.diagonal()[:10] == 0).all()
    assert torch.equal(found.diagonal()[10:20], slow.diagonal()[10:20])
    torch.testing.assert_close(found, slow, rtol=1e-8, atol=0)


def test_repeated_images_have_the_same_distances_to_the_last_bit() -> None:
    left = torch.rand(7, 50, generator=stream(0, "left")).repeat(5, 1)
    right = torch.rand(33, 50, generator=stream(0, "right"))
    assert torch.equal(squared_distances(left, right), by_loop(left.double(), right.double()))
    assert torch.equal(squared_distances(right, left), by_loop(right.double(), left.double()))


def test_one_broken_image_spoils_no_other() -> None:
    left = torch.rand(4, 9, generator=stream(0, "left"))
    broken = left.clone()
    broken[1, 0], broken[2, 0] = torch.nan, torch.inf
    found = squared_distances(broken, left)
    assert not torch.isfinite(found[1:3]).any()
    torch.testing.assert_close(found[[0, 3]], squared_distances(left, left)[[0, 3]], rtol=1e-12, atol=0)


@pytest.mark.parametrize("rows", [1, 3, 8])
@pytest.mark.parametrize("levels", [2, 5, 10**9])
def test_the_pairing_is_that_of_scipy_also_where_costs_tie(rows: int, levels: int) -> None:
    for seed in range(50):
        cost = torch.randint(levels, (rows, 8), generator=stream(seed, "cost")).double()
        assert assign(cost).tolist() == linear_sum_assignment(cost.numpy())[1].tolist()


def test_an_unknown_name_without_a_near_one_lists_all() -> None:
    assert str(unknown_name("rule", "zzz", ["b", "a"])) == "Unknown rule 'zzz'. Known: a, b."
