"""Optimal pairing against trying every permutation."""

from __future__ import annotations

from itertools import permutations

import pytest
import torch

from fedglass.core.assignment import assign, squared_distances
from fedglass.core.errors import unknown_name
from fedglass.core.rng import stream


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


def test_an_unknown_name_without_a_near_one_lists_all() -> None:
    assert str(unknown_name("rule", "zzz", ["b", "a"])) == "Unknown rule 'zzz'. Known: a, b."
