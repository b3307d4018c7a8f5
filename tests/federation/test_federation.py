"""Rounds of a federation."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

from fedglass.core.errors import DataError, UsageError
from fedglass.core.tensors import Update, add
from fedglass.core.types import BatchNorm, Training, Whitening
from fedglass.federation.client import Client
from fedglass.federation.federation import Federation
from fedglass.fl.release import Outgoing

FEDAVG = Training(0.2, epochs=2, batch_size=3)


def test_the_server_takes_the_weighted_mean(toy: Any) -> None:
    clients = [toy.client(0, 2), toy.client(1, 6)]
    federation = replace(toy.federation(FEDAVG), clients=clients)
    past = federation.run().rounds[0]
    small, large = (m.update for m in past.messages)
    for name in small:
        torch.testing.assert_close(past.step[name], 0.25 * small[name] + 0.75 * large[name])
        torch.testing.assert_close(past.after[name], past.before[name] + past.step[name])


def test_rounds_follow_each_other(toy: Any, same: Callable[..., bool]) -> None:
    federation = toy.federation(FEDAVG, clients=2)
    told: list[tuple[int, int]] = []
    first, second, third = federation.run(3, lambda done, of: told.append((done, of))).rounds.values()
    assert same(second.before, add(first.before, first.step))
    assert same(third.before, second.after)
    assert told == [(1, 3), (2, 3), (3, 3)]


def test_the_same_seed_gives_the_same_transcript(toy: Any, same: Callable[..., bool]) -> None:
    one, again, other = (toy.federation(FEDAVG, clients=3, seed=s, participation=0.7).run(2) for s in (0, 0, 1))
    for a, b, c in zip(*(t.rounds.values() for t in (one, again, other)), strict=True):
        assert same(a.step, b.step)
        assert [m.client for m in a.messages] == [m.client for m in b.messages]
        assert not same(a.step, c.step)


def test_the_order_of_clients_does_not_matter(toy: Any) -> None:
    federation = toy.federation(FEDAVG, clients=3)
    turned = replace(federation, clients=list(reversed(federation.clients)))
    one, other = federation.run(2).rounds[1], turned.run(2).rounds[1]
    for name in one.step:
        torch.testing.assert_close(one.step[name], other.step[name])


@pytest.mark.parametrize(("share", "count"), [(1.0, 5), (0.6, 3), (0.4, 2), (0.01, 1)])
def test_a_share_of_the_clients_takes_part(toy: Any, share: float, count: int) -> None:
    transcript = toy.federation(Training(0.1), clients=5, participation=share).run(12)
    seen: Counter[str] = Counter()
    for past in transcript.rounds.values():
        names = [m.client for m in past.messages]
        assert len(set(names)) == len(names) == count
        seen.update(names)
    assert set(seen) == {f"client {i}" for i in range(5)}  # over the rounds everybody is called


def test_a_run_changes_nothing(toy: Any, same: Callable[..., bool]) -> None:
    federation = toy.federation(replace(FEDAVG, batch_norm=BatchNorm.BATCH), model=toy.normalised())
    model, images = copy.deepcopy(federation.model.state_dict()), federation.clients[0].images.clone()
    federation.run(2)
    assert same(model, federation.model.state_dict())
    assert torch.equal(images, federation.clients[0].images)


def test_buffers_are_carried_from_round_to_round(toy: Any, same: Callable[..., bool]) -> None:
    training = replace(FEDAVG, batch_norm=BatchNorm.BATCH)
    federation = replace(toy.federation(training, model=toy.normalised()), clients=[toy.client(0, 2), toy.client(1, 6)])
    first, second = federation.run(2).rounds.values()
    name = "1.running_mean"
    small, large = (m.buffers[name] for m in first.messages)
    torch.testing.assert_close(second.buffers[name], 0.25 * small + 0.75 * large)
    assert not same(first.buffers, second.buffers)
    assert second.buffers["1.num_batches_tracked"].dtype == torch.int64
    frozen = toy.federation(FEDAVG, model=toy.normalised()).run(2).rounds
    assert same(frozen[0].buffers, frozen[1].buffers)


@dataclass(frozen=True)
class Reordered:
    """A release that hands its names back in another order."""

    def release(self, leaving: Outgoing) -> Update:
        return dict(reversed(list(leaving.update.items())))


def test_names_are_aligned_before_they_are_averaged(toy: Any) -> None:
    plain = toy.federation(FEDAVG, clients=2)
    first, second = plain.clients
    mixed = replace(plain, clients=[first, replace(second, release=Reordered())])
    one, other = plain.run().rounds[0].step, mixed.run().rounds[0].step
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_bad_federations_are_refused(toy: Any) -> None:
    good = toy.federation(FEDAVG, clients=2)
    wide = Client("wide", torch.zeros(1, 1, 9, 9), torch.zeros(1).long())
    late = Client("late", torch.zeros(1, 1, 8, 8), torch.tensor([5]))
    with pytest.raises(UsageError, match="at least one client"):
        replace(good, clients=[])
    with pytest.raises(UsageError, match="participation"):
        replace(good, participation=0.0)
    with pytest.raises(UsageError, match="different names"):
        replace(good, clients=[good.clients[0]] * 2)
    with pytest.raises(DataError, match=r"'wide' has images of shape \(1, 9, 9\), expected \(1, 8, 8\)"):
        replace(good, clients=[good.clients[0], wide])
    with pytest.raises(DataError, match="'late' has label 5, expected 0 to 4"):
        replace(good, clients=[late])
    with pytest.raises(DataError, match="whitening has 3 means"):
        replace(good, whitening=Whitening((0.5,) * 3, (0.5,) * 3))
    with pytest.raises(UsageError, match="rounds must be at least 1, got 0"):
        good.run(0)


def test_a_federation_is_a_value(toy: Any) -> None:
    federation = toy.federation(FEDAVG)
    assert isinstance(federation, Federation)
    with pytest.raises(AttributeError):
        federation.seed = 3  # type: ignore[misc]  # that is the point


def test_weights_and_buffers_keep_their_types(toy: Any) -> None:
    """They go through the rule in one row, which is of the widest of their types."""
    model = toy.normalised()
    model.register_buffer("scale", torch.ones(1, dtype=torch.float64))
    federation = toy.federation(FEDAVG, model=model, clients=2)
    before, after = federation.model.state_dict(), federation.run(2).rounds[1]
    kept = {**after.after, **after.buffers_after}
    assert {name: t.dtype for name, t in kept.items()} == {name: t.dtype for name, t in before.items()}
