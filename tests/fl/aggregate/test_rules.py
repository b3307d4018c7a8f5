"""Each rule beside a slow one written from its paper, and what all of them promise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedglass.core.errors import UsageError
from fedglass.core.registry import make, names
from fedglass.core.rng import stream
from fedglass.fl.aggregate.clustering import FreqFed, SignGuard, low_frequencies
from fedglass.fl.aggregate.coordinates import CentredClipping, GeometricMedian, Median, TrimmedMean
from fedglass.fl.aggregate.rule import (
    COLUMNS,
    Aggregated,
    AggregationContext,
    Aggregator,
    WeightedMean,
    cosine_distances,
    squared_distances,
)
from fedglass.fl.aggregate.selection import Balance, DnC, Krum, MultiKrum, outlier_scores

from . import slow

OPTIONS: dict[str, dict[str, object]] = {"centred_clipping": {"radius": 1.0}, "balance": {"phi": 3.0}}
"""Of rules that have no default for all."""
ROBUST = [name for name in names("rules") if name != "mean"]


def honest(n: int, d: int, seed: int, spread: float = 0.3) -> Tensor:
    """Updates that agree up to some noise."""
    common = torch.randn(d, generator=stream(seed, "common"), dtype=torch.float64)
    return common + spread * torch.randn(n, d, generator=stream(seed, "noise"), dtype=torch.float64)


def combined(made: Aggregator, updates: Tensor, seed: int = 0, reference: Tensor | None = None) -> Aggregated:
    own = updates.median(dim=0).values if reference is None else reference
    context = AggregationContext(torch.ones(len(updates)), generator=stream(seed, "rule"), reference=own)
    return made.aggregate(updates, context, made.init(updates[0]))


def made(name: str) -> Aggregator:
    return make("rules", name, **OPTIONS.get(name, {}))


sizes = st.tuples(st.integers(5, 12), st.integers(2, 30), st.integers(0, 10_000))


@given(sizes, st.integers(0, 1))
def test_krum_is_the_papers(size: tuple[int, int, int], byzantine: int) -> None:
    updates = honest(*size)
    found = combined(Krum(byzantine), updates)
    chosen = slow.krum_choice(updates.numpy(), byzantine)
    assert found.accepted.nonzero().flatten().tolist() == [chosen]
    assert torch.equal(found.step, updates[chosen])


@given(sizes, st.booleans())
def test_multi_krum_is_the_papers(size: tuple[int, int, int], iterative: bool) -> None:
    updates = honest(*size)
    count = len(updates) - 3
    by = slow.multi_krum_iterative if iterative else slow.multi_krum_one_pass
    winners = sorted(by(updates.numpy(), 1, count))
    found = combined(MultiKrum(iterative=iterative), updates)
    assert found.accepted.nonzero().flatten().tolist() == winners
    torch.testing.assert_close(found.step, updates[winners].mean(0))


def test_the_two_ways_of_multi_krum_differ() -> None:
    """Once the winner of the larger group has left, another group may be the closest."""
    differ = 0
    for seed in range(60):
        updates = honest(9, 2, seed, 1.0)
        one, other = (combined(MultiKrum(2, 3, iterative), updates).accepted for iterative in (True, False))
        differ += not torch.equal(one, other)
    assert differ


@given(sizes, st.integers(0, 2))
def test_median_and_trimmed_mean_are_the_papers(size: tuple[int, int, int], byzantine: int) -> None:
    updates = honest(*size)
    torch.testing.assert_close(combined(Median(), updates).step.numpy(), slow.median(updates.numpy()))
    found = combined(TrimmedMean(byzantine), updates).step.numpy()
    torch.testing.assert_close(found, slow.trimmed_mean(updates.numpy(), byzantine))


def test_coordinates_are_taken_in_parts_without_a_seam() -> None:
    updates = honest(4, COLUMNS + 3, 0).float()
    torch.testing.assert_close(combined(Median(), updates).step, updates.quantile(0.5, dim=0, interpolation="midpoint"))
    exact = torch.cdist(updates.double(), updates.double()).square()
    torch.testing.assert_close(squared_distances(updates), exact, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("part", [Median(), TrimmedMean(1)])
@pytest.mark.parametrize("columns", [1, COLUMNS + 3])
def test_with_and_without_a_gradient_the_bits_are_the_same(part: Aggregator, columns: int) -> None:
    """One is sorted by numpy, the other by torch; neither writes into the updates."""
    updates = honest(6, columns, 4).float()
    sent = updates.clone()
    plain, followed = combined(part, updates).step, combined(part, updates.clone().requires_grad_()).step
    assert torch.equal(plain, followed.detach())
    assert followed.requires_grad
    assert torch.equal(updates, sent)


@given(sizes)
def test_scores_of_dnc_are_projections_on_the_top_singular_vector(size: tuple[int, int, int]) -> None:
    updates = honest(*size)
    np.testing.assert_allclose(outlier_scores(updates).numpy(), slow.projections(updates.numpy()), rtol=1e-6, atol=1e-9)


def test_dnc_drops_who_stands_out_and_intersects_its_passes() -> None:
    updates = honest(10, 500, 1)
    updates[3] += 5
    found = combined(DnC(1, coordinates=50), updates)
    assert not found.accepted[3]
    torch.testing.assert_close(found.step, updates[found.accepted].mean(0))
    # Without an outlier each pass on other coordinates drops somebody else.
    assert int(combined(DnC(1, coordinates=5), honest(10, 500, 2)).accepted.sum()) < 9
    assert int(combined(DnC(1, passes=1), updates).accepted.sum()) == 9


def test_dnc_keeps_one_where_its_passes_agree_on_nobody() -> None:
    found = combined(DnC(4, passes=60, coordinates=2), honest(9, 400, 0))
    assert int(found.accepted.sum()) == 1


@settings(max_examples=25)
@given(sizes)
def test_no_other_point_has_less_distance_than_the_geometric_median(size: tuple[int, int, int]) -> None:
    updates = honest(*size)
    of = slow.total_distance(updates.numpy(), np.ones(len(updates)))
    point = combined(GeometricMedian(), updates).step
    least = of(point.numpy())
    for shift in 1e-2 * torch.randn(20, updates.shape[1], generator=stream(0, "shift"), dtype=torch.float64):
        assert of((point + shift).numpy()) >= least - 1e-9
    assert least <= min(of(row) for row in updates.numpy()) + 1e-6


def test_the_geometric_median_weighs_by_examples() -> None:
    updates = torch.tensor([[0.0], [0.0], [1.0]], dtype=torch.float64)
    context = AggregationContext(torch.tensor([1.0, 1.0, 5.0]))
    torch.testing.assert_close(GeometricMedian().aggregate(updates, context, None).step, updates[2], rtol=0, atol=1e-5)


@given(sizes, st.integers(1, 4), st.floats(0.1, 10))
def test_centred_clipping_is_the_papers(size: tuple[int, int, int], iterations: int, radius: float) -> None:
    updates = honest(*size)
    part = CentredClipping(radius, iterations)
    first = combined(part, updates)
    start = slow.centred_clipping(updates.numpy(), np.zeros(updates.shape[1]), radius, iterations)
    np.testing.assert_allclose(first.step.numpy(), start, atol=1e-12)
    second = part.aggregate(updates, AggregationContext(torch.ones(len(updates))), first.state)
    expected = slow.centred_clipping(updates.numpy(), start, radius, iterations)
    np.testing.assert_allclose(second.step.numpy(), expected, atol=1e-12)


def test_balance_keeps_who_is_near_the_servers_own_and_fewer_in_later_rounds() -> None:
    own = torch.tensor([1.0, 0.0])
    updates = torch.tensor([[1.5, 0.0], [2.0, 0.0], [3.5, 0.0]])
    part = Balance(phi=2.0, decay=0.5)
    kept = []
    for index in range(4):
        context = AggregationContext(torch.ones(3), index, reference=own)
        kept.append(part.aggregate(updates, context, None).accepted.tolist())
    # The distances are 0.5, 1 and 2.5; the bound falls as 2, 1.2, 0.74, 0.45.
    assert kept == [[True, True, False], [True, True, False], [True, False, False], [False, False, False]]
    assert not part.aggregate(updates, AggregationContext(torch.ones(3), 3, reference=own), None).step.any()


def test_the_low_half_of_the_cosine_transform() -> None:
    row = honest(1, 11, 3)[0]
    np.testing.assert_allclose(low_frequencies(row).numpy(), slow.cosine_transform(row.numpy())[:6], atol=1e-12)


def test_freqfed_keeps_the_larger_of_two_groups_and_nobody_that_is_noise() -> None:
    pytest.importorskip("sklearn")
    updates = honest(8, 200, 0, 0.1)
    updates[5:] *= -1
    assert combined(FreqFed(), updates).accepted.tolist() == [True] * 5 + [False] * 3
    found = combined(FreqFed(least=8), torch.eye(8, dtype=torch.float64))
    assert not found.accepted.any()
    assert not found.step.any()


@pytest.mark.parametrize("clustering", ["mean_shift", "kmeans"])
def test_signguard_filters_length_and_signs_and_clips(clustering: str) -> None:
    pytest.importorskip("sklearn")
    updates = honest(10, 3000, 0, 0.3) + 0.3
    updates[1] *= 50  # too long
    updates[2] *= 0.01  # too short
    updates[3] *= -1  # wrong signs, usual length
    updates[4] *= 2.5  # within the bounds: kept, but clipped
    found = combined(SignGuard(clustering=clustering), updates)
    assert found.accepted.tolist() == [i not in (1, 2, 3) for i in range(10)]
    typical = updates.norm(dim=1).quantile(0.5)
    clipped = [row * min(1.0, float(typical / row.norm())) for row in updates[found.accepted]]
    torch.testing.assert_close(found.step, torch.stack(clipped).mean(0))


def test_without_scikit_learn_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "sklearn.cluster", None)
    with pytest.raises(UsageError, match=r"fedglass\[robust\]"):
        combined(FreqFed(), honest(5, 10, 0))


@pytest.mark.parametrize("name", ROBUST)
@pytest.mark.parametrize("seed", range(5))
def test_the_order_of_clients_does_not_matter(name: str, seed: int) -> None:
    if name in ("freqfed", "signguard"):
        pytest.importorskip("sklearn")
    updates, order = honest(9, 40, seed), torch.randperm(9, generator=stream(seed, "order"))
    one, other = combined(made(name), updates), combined(made(name), updates[order])
    torch.testing.assert_close(one.step, other.step)
    assert torch.equal(one.accepted[order], other.accepted)


PROMISED = [
    "krum",
    "multi_krum",
    "median",
    "trimmed_mean",
    "dnc",
    "geometric_median",
    "signguard",
    "freqfed",
    "balance",
]


@pytest.mark.parametrize("name", [*PROMISED, "centred_clipping"])
@pytest.mark.parametrize("poison", [1e6, -1e6])
def test_poison_of_a_million_does_not_move_it(name: str, poison: float) -> None:
    """Up to the spread of the honest updates; the mean is moved by 10^5."""
    if name in ("freqfed", "signguard"):
        pytest.importorskip("sklearn")
    updates = honest(10, 60, 0)
    clean = updates[1:]
    poisoned = updates.clone()
    poisoned[0] = poison
    found = combined(made(name), poisoned, reference=clean.mean(0))
    farthest = float((clean - clean.mean(0)).norm(dim=1).max())
    if name == "centred_clipping":  # one client moves it by at most radius / n
        without = combined(made(name), torch.cat([torch.zeros(1, 60, dtype=torch.float64), clean]))
        assert float((found.step - without.step).norm()) <= 1.0 / 10 + 1e-9
        return
    assert float((found.step - clean.mean(0)).norm()) <= farthest
    assert float((combined(WeightedMean(), poisoned).step - clean.mean(0)).norm()) > 1e5


@pytest.mark.parametrize("name", [name for name in ROBUST if name not in ("freqfed", "signguard")])
def test_equal_updates_come_back_as_they_are(name: str) -> None:
    """Ties of all kinds: nobody is better than another."""
    updates = torch.ones(7, 5, dtype=torch.float64).cumsum(1) / 10
    found = combined(
        make("rules", name, **({"radius": 100.0} if name == "centred_clipping" else OPTIONS.get(name, {}))), updates
    )
    torch.testing.assert_close(found.step, updates[0])
    assert found.accepted.any()


@pytest.mark.parametrize(
    ("part", "clients", "match"),
    [
        (Krum(4), 10, "at least 11 clients"),
        (MultiKrum(4), 10, "at least 11 clients"),
        (MultiKrum(1, keep=9), 10, "keep must be between 1 and 7"),
        (TrimmedMean(5), 10, "at least 11 clients"),
        (DnC(5), 10, "at least 11 clients"),
        (FreqFed(), 1, "at least 2 clients"),
        (Krum(-1), 10, "byzantine must be at least 0"),
    ],
)
def test_too_few_clients_are_refused_before_a_round(part: Any, clients: int, match: str) -> None:
    with pytest.raises(UsageError, match=match):
        part.check(clients, False)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: Balance(phi=0.0),
        lambda: CentredClipping(radius=-1.0),
        lambda: DnC(passes=0),
        lambda: FreqFed(least=1),
        lambda: SignGuard(clustering="other"),
        lambda: SignGuard(shortest=4.0),
        lambda: GeometricMedian(iterations=0),
    ],
)
def test_options_out_of_bounds_are_refused(wrong: Callable[[], object]) -> None:
    with pytest.raises(UsageError, match=r"federation\.rule"):
        wrong()


def test_an_update_of_zeros_has_no_direction() -> None:
    rows = torch.tensor([[0.0, 0.0], [1.0, 0.0], [2.0, 0.0]])
    assert cosine_distances(rows).tolist() == [[0, 1, 1], [1, 0, 0], [1, 0, 0]]


def test_distances_survive_a_huge_neighbour() -> None:
    """In single precision the products of a poisoned update would drown the others'."""
    rows = honest(5, 1000, 0).float()
    rows[0] = 1e6
    exact = torch.cdist(rows[1:].double(), rows[1:].double()).square()
    torch.testing.assert_close(squared_distances(rows)[1:, 1:], exact, rtol=1e-6, atol=1e-6)
