"""What a view shows, and what it must not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from fedglass.core.errors import UsageError
from fedglass.core.types import Training
from fedglass.rounds.federation import Transcript
from fedglass.rounds.views import AggregateView, Knows, ServerView

FEDAVG = Training(0.2, epochs=2, batch_size=3)
NOTHING = Knows(training=False)


@pytest.fixture
def transcript(toy: Any) -> Transcript:
    found: Transcript = toy.federation(FEDAVG, clients=3).run(2)
    return found


def test_the_server_sees_one_clients_update(transcript: Transcript, same: Callable[..., bool]) -> None:
    seen, truth = ServerView(client=1, round=1).see(transcript, NOTHING)
    past = transcript.rounds[1]
    assert same(seen.update, past.messages[1].update)
    assert same(seen.before, past.before)
    assert same(seen.buffers, past.buffers)
    assert truth.clients == ("client 1",)
    assert torch.equal(truth.images, transcript.federation.clients[1].images)
    assert torch.equal(truth.labels, transcript.federation.clients[1].labels)
    assert seen.knows.examples == 4
    assert seen.knows.clients == 1
    assert seen.knows.shape == (1, 8, 8)


def test_secure_aggregation_shows_the_aggregate(transcript: Transcript, same: Callable[..., bool]) -> None:
    seen, truth = AggregateView(round=1).see(transcript, NOTHING)
    assert same(seen.update, transcript.rounds[1].step)
    assert truth.clients == ("client 0", "client 1", "client 2")
    assert torch.equal(truth.images, torch.cat([c.images for c in transcript.federation.clients]))
    assert torch.equal(truth.labels, torch.cat([c.labels for c in transcript.federation.clients]))
    assert seen.knows.examples == 12
    assert seen.knows.clients == 3


@pytest.mark.parametrize("view", [ServerView(), AggregateView()])
def test_what_is_not_known_is_none(transcript: Transcript, view: ServerView | AggregateView) -> None:
    knows = view.see(transcript, NOTHING)[0].knows
    assert (knows.training, knows.steps, knows.lr, knows.labels, knows.batch_labels) == (None,) * 5


def test_steps_and_rate_may_be_known_alone(transcript: Transcript) -> None:
    knows = ServerView().see(transcript, Knows(training=False, steps=True))[0].knows
    assert (knows.training, knows.steps, knows.lr) == (None, 4, 0.2)


def test_steps_of_unequal_clients_are_their_weighted_mean(transcript: Transcript) -> None:
    clients = transcript.federation.clients
    cut = [replace(c, images=c.images[:n], labels=c.labels[:n]) for c, n in zip(clients, (1, 4, 4), strict=True)]
    past = replace(transcript.federation, clients=cut, training=Training(0.2, epochs=3, batch_size=1)).run()
    knows = AggregateView().see(past, Knows(training=False, steps=True))[0].knows
    assert knows.steps == round((1 * 3 + 4 * 12 + 4 * 12) / 9)


def test_told_labels_do_not_tell_the_order(transcript: Transcript) -> None:
    seen, truth = AggregateView().see(transcript, Knows(labels=True))
    told = seen.knows.labels
    assert told is not None
    for mine, theirs in zip(torch.split(told, 4), torch.split(truth.labels, 4), strict=True):
        assert torch.equal(mine, theirs.sort().values)


def test_batch_labels_are_told_of_one_client_only(transcript: Transcript) -> None:
    knows = Knows(batch_labels=True)
    assert ServerView(2).see(transcript, knows)[0].knows.batch_labels == transcript.rounds[0].messages[2].batch_labels
    assert AggregateView().see(transcript, knows)[0].knows.batch_labels is None


def test_views_of_what_did_not_happen_are_refused(toy: Any, transcript: Transcript) -> None:
    with pytest.raises(UsageError, match=r"adversary\.client must be one of 0 to 2, got 3"):
        ServerView(client=3).see(transcript, NOTHING)
    with pytest.raises(UsageError, match=r"adversary\.round must be one of 0 to 1, got 2"):
        AggregateView(round=2).see(transcript, NOTHING)
    partial = replace(transcript.federation, participation=0.4).run()
    absent = {0, 1, 2} - {int(m.client.name[-1]) for m in partial.rounds[0].messages}
    with pytest.raises(UsageError, match="did not take part in round 0"):
        ServerView(client=absent.pop()).see(partial, NOTHING)


@pytest.mark.parametrize("view", [ServerView(1, 2), AggregateView(3)])
def test_a_view_prints_as_itself(view: ServerView | AggregateView) -> None:
    assert eval(repr(view)) == view
    assert f"round {view.round + 1}" in view.describe()
