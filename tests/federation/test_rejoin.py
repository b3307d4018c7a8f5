"""Clients that come back under a new name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fedglass.audit.simulated import Simulated
from fedglass.audit.target import ready_target
from fedglass.core.errors import UsageError
from fedglass.core.types import Training
from fedglass.federation.behaviours import RejoinAfterRejection, SignFlip
from fedglass.federation.federation import Federation
from fedglass.federation.transcript import Transcript
from fedglass.federation.views import ServerView
from fedglass.fl.aggregate.rule import Aggregated, AggregationContext, State, mean_of

FEDSGD = Training(0.1)


@dataclass(frozen=True)
class Banishing:
    """Lets nobody in whose update was once longer than `most`: a history of each client, by its name."""

    most: float

    def init(self, weights: Tensor) -> State:
        return frozenset()

    def aggregate(self, updates: Tensor, context: AggregationContext, state: State) -> Aggregated:
        long = {c for c, row in zip(context.clients, updates, strict=True) if float(row.norm()) > self.most}
        banned = state | long
        return mean_of(updates, torch.tensor([name not in banned for name in context.clients]), banned)


def federation(toy: Any, after: int | None, behaviour: Any = None) -> Federation:
    """Of three clients the first sends ten times its update, in the first round alone where nothing else is said."""
    made: Federation = toy.federation(FEDSGD, clients=3, aggregator=Banishing(5.0))
    first, *others = made.clients
    acting = behaviour or OnlyFirst()
    return replace(
        made,
        clients=[replace(first, behaviour=acting if after is None else RejoinAfterRejection(acting, after)), *others],
    )


@dataclass(frozen=True)
class OnlyFirst:
    """A long update in the first round, honest ones afterwards."""

    def examples(self, turn: Any) -> tuple[Tensor, Tensor]:
        return turn.images, turn.labels

    def update(self, turn: Any, trained: Any) -> Any:
        return {name: 1000 * tensor for name, tensor in trained.items()} if turn.round == 0 else trained

    def describe(self) -> str:
        return "shouts once"


@dataclass(frozen=True)
class EveryOther(OnlyFirst):
    """A long update in every other round."""

    def update(self, turn: Any, trained: Any) -> Any:
        return {name: 1000 * tensor for name, tensor in trained.items()} if turn.round % 2 == 0 else trained


@dataclass(frozen=True)
class Forgetting(Banishing):
    """Rejects a long update, and lets the client in again afterwards."""

    def aggregate(self, updates: Tensor, context: AggregationContext, state: State) -> Aggregated:
        return super().aggregate(updates, context, frozenset())


def names(round_: Any) -> list[str]:
    return [p.known_as or p.name for p in round_.participants]


def test_who_is_banished_stays_out_until_it_has_a_new_name(toy: Any) -> None:
    stays = federation(toy, None).run(4).rounds
    assert ["client 0" in stays[i].accepted for i in range(4)] == [False] * 4
    back = federation(toy, 2).run(4).rounds
    assert [names(back[i])[0] for i in range(4)] == ["client 0", "client 0", "newcomer 1", "newcomer 1"]
    assert ["client 0" in back[i].accepted for i in range(4)] == [False, False, True, True]


def test_it_keeps_changing_names_while_it_is_rejected(toy: Any) -> None:
    shouting = federation(toy, 1, SignFlip(1000.0)).run(3).rounds
    assert [names(shouting[i])[0] for i in range(3)] == ["client 0", "newcomer 1", "newcomer 2"]


def test_until_it_is_rejected_nothing_changes(toy: Any, same: Callable[..., bool]) -> None:
    one, other = (federation(toy, after).run(2).rounds for after in (None, 2))
    assert all(same(one[i].step, other[i].step) for i in range(2))


def test_views_and_truths_still_know_who_it_is(toy: Any) -> None:
    made = federation(toy, 1)
    (target,) = Simulated(made, 2, (ServerView(0, 1),)).targets(lambda done, total: None)
    found = ready_target(target)
    assert found.contributors == ("client 0",)
    assert found.behaviours == (
        "Client 0 shouts once, and comes back under a new name when one of its updates was rejected.",
        "Round 2: the server knew client 0 as 'newcomer 1', under which it had come back after rejections.",
    )


def test_a_transcript_keeps_both_names(toy: Any, tmp_path: Path) -> None:
    made = federation(toy, 1)
    made.run(2).save(tmp_path)
    again = Transcript.load(tmp_path, made.model)
    assert names(again.rounds[1]) == ["newcomer 1", "client 1", "client 2"]
    assert again.rounds[1].participants == made.run(2).rounds[1].participants


def test_a_newcomer_never_has_anybodys_name(toy: Any) -> None:
    made = federation(toy, 1)
    first, second, third = made.clients
    second, third = replace(second, behaviour=first.behaviour), replace(third, name="newcomer 1")
    rounds = replace(made, clients=[first, second, third]).run(2).rounds
    assert names(rounds[1]) == ["newcomer 2", "newcomer 3", "newcomer 1"]


def test_an_accepted_update_begins_the_count_anew(toy: Any) -> None:
    made = replace(federation(toy, 2, EveryOther()), aggregator=Forgetting(5.0))
    rounds = made.run(4).rounds
    assert ["client 0" in rounds[i].accepted for i in range(4)] == [False, True, False, True]
    assert names(rounds[3])[0] == "client 0"


def test_zero_rejections_are_refused() -> None:
    with pytest.raises(UsageError, match="rejoins_after must be at least 1, got 0"):
        RejoinAfterRejection(OnlyFirst(), 0)
