"""Laws of the partitions: disjoint, complete (or as asked), reproducible, and of the stated kind."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedglass.core.errors import DataError, UsageError
from fedglass.core.rng import stream
from fedglass.core.types import Whitening
from fedglass.data.dataset import ByWriter, Dataset, Dirichlet, Iid, Partition, Sizes


def make(n: int, classes: int = 5, writers: int = 4) -> Dataset:
    generator = stream(n, "toy")
    return Dataset(
        name="toy",
        images=torch.zeros(n, 1, 1, 1),
        labels=torch.randint(classes, (n,), generator=generator),
        classes=classes,
        whitening=Whitening((0.0,), (1.0,)),
        writers=torch.arange(n) % writers,
    )


@settings(max_examples=40, deadline=None)
@given(
    n=st.integers(4, 80),
    clients=st.integers(1, 4),
    rule=st.sampled_from([Iid(), Dirichlet(0.1), Dirichlet(1e-6), Dirichlet(100.0)]),
    seed=st.integers(0, 99),
)
def test_covers_without_overlap_or_empty_clients(n: int, clients: int, rule: Partition, seed: int) -> None:
    parts = rule.split(make(n), clients, stream(seed, "split"))
    assert len(parts) == clients
    assert all(len(part) for part in parts)
    assert sorted(torch.cat(parts).tolist()) == list(range(n))
    again = rule.split(make(n), clients, stream(seed, "split"))
    assert all(torch.equal(a, b) for a, b in zip(parts, again, strict=True))


@pytest.mark.parametrize("rule", [Iid(), Dirichlet(1.0), Sizes(sizes=(5, 5))])
def test_depends_on_the_generator(rule: Partition) -> None:
    one, two = (rule.split(make(40), 2, stream(seed, "split"))[0].tolist() for seed in (0, 1))
    assert one != two


@pytest.mark.parametrize("rule", [Iid(), Dirichlet(0.5), ByWriter(), Sizes(sizes=(3, 4))])
def test_the_printed_rule_is_the_rule(rule: Partition) -> None:
    assert eval(repr(rule)) == rule


def test_iid_is_even() -> None:
    assert [len(part) for part in Iid().split(make(11), 4, stream(0, "split"))] == [3, 3, 3, 2]


def test_small_alpha_concentrates_and_large_alpha_evens_out() -> None:
    data = make(2000)

    def largest_share(alpha: float) -> float:
        parts = Dirichlet(alpha).split(data, 4, stream(0, "split"))
        counts = torch.stack([data.labels[part].bincount(minlength=5) for part in parts]).float()
        return float((counts / counts.sum(0)).max(0).values.mean())

    assert largest_share(0.01) > 0.9
    assert largest_share(1000.0) < 0.3


def test_by_writer_gives_each_client_one_whole_writer() -> None:
    data = make(22, writers=4)
    parts = ByWriter().split(data, 4, stream(0, "split"))
    assert [part.tolist() for part in parts] == [list(range(w, 22, 4)) for w in range(4)]
    fewer = ByWriter().split(data, 2, stream(0, "split"))
    assert all(any(torch.equal(part, whole) for whole in parts) for part in fewer)
    assert not torch.equal(fewer[0], fewer[1])


def test_sizes_are_exact_and_disjoint() -> None:
    parts = Sizes(sizes=(5, 1, 3)).split(make(10), 3, stream(0, "split"))
    assert [len(part) for part in parts] == [5, 1, 3]
    assert len(set(torch.cat(parts).tolist())) == 9


@pytest.mark.parametrize(
    ("rule", "clients", "says"),
    [
        (Iid(), 0, "between 1 and 10, got 0"),
        (Iid(), 11, "between 1 and 10, got 11"),
        (Dirichlet(1.0), 11, "between 1 and 10, got 11"),
        (ByWriter(), 5, "4 writers, too few for 5 clients"),
        (Sizes(sizes=(6, 5)), 2, "has 10 examples.*needs 11"),
        (Sizes(sizes=(6, 5)), 3, "names 2 clients, got clients=3"),
    ],
)
def test_refuses_what_can_not_be_split(rule: Partition, clients: int, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        rule.split(make(10), clients, stream(0, "split"))


def test_by_writer_needs_writers() -> None:
    data = make(10)
    lone = Dataset("lone", data.images, data.labels, data.classes, data.whitening)
    with pytest.raises(DataError, match="lone does not say who wrote"):
        ByWriter().split(lone, 2, stream(0, "split"))


@pytest.mark.parametrize("alpha", [0.0, -1.0, float("nan"), float("inf")])
def test_refuses_alpha(alpha: float) -> None:
    with pytest.raises(UsageError, match="positive finite alpha"):
        Dirichlet(alpha)


@pytest.mark.parametrize("sizes", [(), (3, 0)])
def test_refuses_sizes(sizes: tuple[int, ...]) -> None:
    with pytest.raises(UsageError, match="one positive number per client"):
        Sizes(sizes)
