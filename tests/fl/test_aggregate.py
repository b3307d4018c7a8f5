"""Aggregation and release."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedglass.core.rng import stream
from fedglass.core.tensors import Update
from fedglass.fl.aggregate.rule import AggregationContext, WeightedMean
from fedglass.fl.release import AsIs, Chain, Outgoing


@given(st.integers(1, 6), st.integers(0, 100))
def test_the_mean_ignores_the_order_of_clients(n: int, seed: int) -> None:
    updates = torch.randn(n, 7, generator=stream(seed, "u"), dtype=torch.float64)
    weights = torch.rand(n, generator=stream(seed, "w")) + 0.1
    order = torch.randperm(n, generator=stream(seed, "o"))
    rule = WeightedMean()
    one = rule.aggregate(updates, AggregationContext(weights), None).step
    other = rule.aggregate(updates[order], AggregationContext(weights[order]), None).step
    torch.testing.assert_close(one, other)
    slow = sum((w.double() * u for w, u in zip(weights, updates, strict=True)), torch.zeros(7)) / weights.double().sum()
    torch.testing.assert_close(one, slow)


def test_one_client_is_its_own_mean() -> None:
    update = torch.randn(1, 9, generator=stream(0, "u"))
    found = WeightedMean().aggregate(update, AggregationContext(torch.tensor([13.0])), WeightedMean().init(update[0]))
    assert torch.equal(found.step, update[0])
    assert found.accepted.tolist() == [True]


@dataclass(frozen=True)
class Plus:
    by: float

    def release(self, leaving: Outgoing) -> Update:
        return {name: 2 * tensor + self.by for name, tensor in leaving.update.items()}


@pytest.mark.parametrize(("chain", "found"), [((), 1.0), ((Plus(1.0), Plus(3.0)), 9.0), ((Plus(3.0), Plus(1.0)), 11.0)])
def test_a_chain_releases_in_order(chain: tuple[Plus, ...], found: float) -> None:
    update = {"w": torch.tensor(1.0)}
    assert Chain(chain).release(Outgoing(update, stream(0, "r")))["w"] == found
    assert AsIs().release(Outgoing(update, stream(0, "r"))) is update
