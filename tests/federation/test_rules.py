"""Robust rules in a federation: who gets through, and what the round does where nobody does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

from fedglass.core.errors import UsageError
from fedglass.core.tensors import Update
from fedglass.core.types import Training
from fedglass.federation.federation import Federation
from fedglass.federation.peer import PeerView
from fedglass.federation.views import Knows
from fedglass.fl.aggregate.rule import Aggregator, WeightedMean
from fedglass.fl.aggregate.selection import Balance, Krum
from fedglass.fl.release import Outgoing

FEDAVG = Training(0.2, epochs=2)


@dataclass(frozen=True)
class Broken:
    """Sends an update with a hole in it."""

    value: float = float("nan")

    def release(self, leaving: Outgoing) -> Update:
        first = next(iter(leaving.update))
        broken = leaving.update[first].clone()
        broken.view(-1)[0] = self.value
        return {**leaving.update, first: broken}


def federation(toy: Any, rule: Aggregator, clients: int = 6, **facts: Any) -> Federation:
    found: Federation = toy.federation(FEDAVG, clients=clients, aggregator=rule, **facts)
    return found


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("rule", [WeightedMean(), Krum(1)])
def test_an_update_with_a_hole_reaches_no_rule(
    toy: Any, rule: Aggregator, value: float, same: Callable[..., bool]
) -> None:
    whole = federation(toy, rule)
    first, *others = whole.clients
    broken = replace(whole, clients=[replace(first, release=Broken(value)), *others]).run().rounds[0]
    assert "client 0" not in broken.accepted
    without = replace(whole, clients=others).run().rounds[0]
    assert same(broken.step, without.step)
    assert [m.client for m in broken.messages] == [c.name for c in whole.clients]


def test_a_round_in_which_every_update_has_a_hole_keeps_the_model(toy: Any, same: Callable[..., bool]) -> None:
    whole = federation(toy, WeightedMean(), 2)
    past = replace(whole, clients=[replace(c, release=Broken()) for c in whole.clients]).run(2)
    assert past.rounds[0].accepted == past.rounds[1].accepted == ()
    assert same(past.rounds[1].before, past.rounds[0].before)


def test_krum_lets_a_peer_see_one_client_as_the_server_does(toy: Any, same: Callable[..., bool]) -> None:
    made = federation(toy, Krum(1))
    past = made.run()
    (winner,) = past.rounds[0].accepted
    message = past.rounds[0].message(winner)
    assert message is not None
    peer = next(i for i, client in enumerate(made.clients) if client.name != winner)
    seen = PeerView(peer).see(past, Knows(), made.truths())
    for name, tensor in message.update.items():
        torch.testing.assert_close(seen.observation.update[name], tensor)


def test_balance_compares_with_what_the_servers_own_examples_give(toy: Any, same: Callable[..., bool]) -> None:
    own = toy.client(9, 8)
    near = federation(toy, Balance(phi=100.0), server=own).run().rounds[0]
    assert len(near.accepted) == 6
    far = federation(toy, Balance(phi=1e-9), server=own).run().rounds[0]
    assert far.accepted == ()
    assert same(far.after, far.before)


def test_what_a_rule_can_not_do_is_refused_before_a_round(toy: Any) -> None:
    with pytest.raises(UsageError, match="at least 7 clients in a round"):
        federation(toy, Krum(2), 6)
    with pytest.raises(UsageError, match=r"federation\.server_examples"):
        federation(toy, Balance(1.0))
    with pytest.raises(UsageError, match="at least 5 clients"):
        federation(toy, Krum(1), 8, participation=0.5)


def test_the_servers_examples_are_part_of_the_identity(toy: Any) -> None:
    one, other = (federation(toy, Balance(1.0), server=toy.client(i, 8)) for i in (7, 9))
    assert one.identity != other.identity
