"""What a view shows, and what it must not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import pytest
import torch

from fedglass.core.errors import DataError, UsageError
from fedglass.core.facts import Fact
from fedglass.core.identity import identity_text
from fedglass.core.tensors import add
from fedglass.core.types import Training
from fedglass.federation.federation import Federation, observe
from fedglass.federation.peer import PeerView
from fedglass.federation.transcript import MEAN_RULE
from fedglass.federation.truth import Truths
from fedglass.federation.views import AggregateView, Knows, ServerView, Together, View
from fedglass.fl.aggregate.rule import Aggregated, AggregationContext, State, WeightedMean

FEDAVG = Training(0.2, epochs=2, batch_size=3)
NOTHING = Knows(training=False)
VIEWS: list[View] = [ServerView(1, 1), AggregateView(1), PeerView(1, 1)]


@pytest.fixture
def federation(toy: Any) -> Federation:
    found: Federation = toy.federation(FEDAVG, clients=3)
    return found


def test_the_server_sees_one_clients_update(federation: Federation, same: Callable[..., bool]) -> None:
    past = federation.run(2).rounds[1]
    seen, truth = observe(federation, ServerView(client=1, round=1), NOTHING)
    assert same(seen.update, past.messages[1].update)
    assert same(seen.before, past.before)
    assert same(seen.buffers, past.buffers)
    assert seen.own is None
    assert truth.clients == ("client 1",)
    assert torch.equal(truth.images, federation.clients[1].images)
    assert torch.equal(truth.labels, federation.clients[1].labels)
    assert (seen.knows.examples, seen.knows.clients, seen.knows.sizes) == (4, 1, (4,))
    assert seen.knows.shape == (1, 8, 8)


def test_secure_aggregation_shows_the_aggregate(federation: Federation, same: Callable[..., bool]) -> None:
    seen, truth = observe(federation, AggregateView(round=1), NOTHING)
    assert same(seen.update, federation.run(2).rounds[1].step)
    assert truth.clients == ("client 0", "client 1", "client 2")
    assert torch.equal(truth.images, torch.cat([c.images for c in federation.clients]))
    assert torch.equal(truth.labels, torch.cat([c.labels for c in federation.clients]))
    assert (seen.knows.examples, seen.knows.clients, seen.knows.sizes) == (12, 3, (4, 4, 4))


def test_a_peer_sees_two_models_and_what_is_its_own(federation: Federation, same: Callable[..., bool]) -> None:
    past = federation.run(2).rounds
    seen, truth = observe(federation, PeerView(client=1, round=0), NOTHING)
    assert same(add(seen.before, seen.update), past[1].before)
    assert seen.own is not None
    assert same(seen.own.update, past[0].messages[1].update)
    assert torch.equal(seen.own.images, federation.clients[1].images)
    assert torch.equal(seen.own.labels, federation.clients[1].labels)
    assert Fact.OWN in seen.facts
    assert truth.clients == ("client 0", "client 2")
    assert truth.own == 4
    assert torch.equal(truth.images[-4:], federation.clients[1].images)
    assert torch.equal(truth.private.images, torch.cat([federation.clients[i].images for i in (0, 2)]))
    assert seen.knows.examples == 12


def test_nothing_of_the_others_is_given_to_a_peer(federation: Federation, same: Callable[..., bool]) -> None:
    """A transcript without the others' messages, and truths without their examples, show a peer the same."""
    transcript, truths = federation.run(), federation.truths()
    past = transcript.rounds[0]
    bare = replace(transcript, rounds={0: replace(past, messages=(past.messages[1],))})
    alone = Truths({"client 1": truths.of("client 1", 0)})
    view = PeerView(client=1)
    one, other = view.see(transcript, Knows(), truths).observation, view.see(bare, Knows(), alone).observation
    assert one.own is not None
    assert other.own is not None
    assert same(one.update, other.update)
    assert same(one.own.update, other.own.update)


@dataclass(frozen=True)
class Only:
    """A rule that forwards the update of one client."""

    position: int

    def init(self, weights: torch.Tensor) -> State:
        return 0

    def aggregate(self, updates: torch.Tensor, context: AggregationContext, state: State) -> Aggregated:
        return Aggregated(updates[self.position], torch.arange(len(updates)) == self.position, state + 1)


def test_behind_an_aggregate_are_those_that_got_through(federation: Federation, same: Callable[..., bool]) -> None:
    chosen = replace(federation, aggregator=Only(2))
    seen, truth = observe(chosen, AggregateView(), Knows())
    assert truth.clients == ("client 2",)
    assert seen.knows.examples == 4
    assert same(seen.update, federation.run().rounds[0].messages[2].update)
    seen, truth = observe(chosen, PeerView(client=0), Knows())
    assert (truth.clients, truth.own, seen.knows.examples) == (("client 2",), 0, 4)
    with pytest.raises(UsageError, match="accepted no update of the round but that of 'client 2' itself"):
        observe(chosen, PeerView(client=2), Knows())


@pytest.mark.parametrize("view", VIEWS)
def test_what_is_not_known_is_none(federation: Federation, view: View) -> None:
    knows = observe(federation, view, NOTHING)[0].knows
    assert (knows.training, knows.steps, knows.lr, knows.labels, knows.batch_labels) == (None,) * 5


def test_steps_and_rate_may_be_known_alone(federation: Federation) -> None:
    knows = observe(federation, ServerView(), Knows(training=False, steps=True))[0].knows
    assert (knows.training, knows.steps, knows.lr) == (None, 4, 0.2)


def test_steps_of_unequal_clients_are_their_weighted_mean(federation: Federation) -> None:
    parts = zip(federation.clients, (1, 4, 4), strict=True)
    cut = [replace(c, images=c.images[:n], labels=c.labels[:n]) for c, n in parts]
    uneven = replace(federation, clients=cut, training=Training(0.2, epochs=3, batch_size=1))
    knows = observe(uneven, AggregateView(), Knows(training=False, steps=True))[0].knows
    assert knows.steps == round((1 * 3 + 4 * 12 + 4 * 12) / 9)
    assert Fact.EQUAL_CLIENTS not in knows.facts


def test_trainings_that_differ_are_known_one_by_one_only(federation: Federation) -> None:
    own = Training(0.05)
    mixed = replace(federation, clients=[replace(federation.clients[0], training=own), *federation.clients[1:]])
    assert observe(mixed, ServerView(0), Knows())[0].knows.training == own
    assert observe(mixed, ServerView(1), Knows())[0].knows.training == FEDAVG
    assert observe(mixed, AggregateView(), Knows())[0].knows.training is None


def test_told_labels_do_not_tell_the_order(federation: Federation) -> None:
    seen, truth = observe(federation, AggregateView(), Knows(labels=True))
    told = seen.knows.labels
    assert told is not None
    for mine, theirs in zip(torch.split(told, 4), torch.split(truth.labels, 4), strict=True):
        assert torch.equal(mine, theirs.sort().values)


def test_batch_labels_are_told_of_one_client_only(federation: Federation) -> None:
    knows, told = Knows(batch_labels=True), federation.truths([1]).batch_labels
    assert observe(federation, ServerView(2, 1), knows)[0].knows.batch_labels == told[1, "client 2"]
    assert observe(federation, AggregateView(), knows)[0].knows.batch_labels is None


def test_views_of_what_did_not_happen_are_refused(federation: Federation) -> None:
    participants = federation.participants_by_round(2)
    for kind in (ServerView, PeerView):
        with pytest.raises(UsageError, match=r"adversary\.client must be one of 0 to 2, got 3"):
            kind(client=3).check(participants)
    for view in (ServerView(0, 2), AggregateView(2), PeerView(0, 2)):
        with pytest.raises(UsageError, match=r"adversary\.round must be one of 0 to 1, got 2"):
            view.check(participants)
    partial = replace(federation, participation=0.7)
    absent = ({0, 1, 2} - {int(client.name[-1]) for client in partial.clients_in_round(0)}).pop()
    for kind in (ServerView, PeerView):
        with pytest.raises(UsageError, match="did not take part in round 0"):
            kind(client=absent).check(partial.participants_by_round(1))
    with pytest.raises(UsageError, match="is alone in round 0"):
        PeerView().check(replace(federation, clients=federation.clients[:1]).participants_by_round(1))
    with pytest.raises(UsageError, match="must be one of 1, 4, got 0"):
        AggregateView().check(replace(participants, rounds={1: (), 4: ()}))


def test_a_recording_of_aggregates_alone_has_no_server_view(federation: Federation) -> None:
    transcript = federation.run()
    secure = replace(transcript, rounds={0: replace(transcript.rounds[0], messages=())})
    with pytest.raises(UsageError, match="recorded as an aggregate only"):
        ServerView().see(secure, Knows(), None)
    with pytest.raises(UsageError, match="The contribution of 'client 0' is unknown"):
        PeerView().see(secure, Knows(), federation.truths())
    with pytest.raises(DataError, match="private examples of 'client 0' are missing; those of no client are stored"):
        PeerView().see(transcript, Knows(), Truths({}))
    assert AggregateView().see(secure, Knows(), None).clients == ("client 0", "client 1", "client 2")


@pytest.mark.parametrize("view", VIEWS)
def test_a_view_prints_as_itself(view: View) -> None:
    assert eval(repr(view)) == view
    assert view.rounds() == (1,)
    assert "round 2" in view.describe()


def test_views_that_seeds_depend_on_keep_their_names_and_fields() -> None:
    kinds = (ServerView, AggregateView, PeerView, Together)
    assert {kind.__name__: tuple(field.name for field in fields(kind)) for kind in kinds} == {
        "ServerView": ("client", "round"),
        "AggregateView": ("round",),
        "PeerView": ("client", "round"),
        "Together": ("views",),
    }
    assert [repr(view) for view in (*VIEWS, Together((ServerView(), ServerView(0, 1))))] == [
        "ServerView(client=1, round=1)",
        "AggregateView(round=1)",
        "PeerView(client=1, round=1)",
        "Together(views=(ServerView(client=0, round=0), ServerView(client=0, round=1)))",
    ]


def test_the_identifier_of_a_mean_is_how_it_prints(federation: Federation) -> None:
    assert repr(WeightedMean()) == federation.terms.rule == MEAN_RULE


def test_behind_the_message_are_the_examples_that_were_taken(federation: Federation) -> None:
    """Steps that end within the first epoch leave examples out, which are in no message."""
    short = replace(federation, training=Training(0.2, batch_size=1, steps=2))
    seen, truth = observe(short, ServerView(1, 1), Knows(labels=True, batch_labels=True))
    assert (seen.knows.examples, seen.knows.local_steps) == (2, 2)
    assert len(truth.labels) == 2
    assert sorted(truth.labels.tolist()) == sorted(label for (label,) in seen.knows.batch_labels or ())
    whole = federation.clients[1]
    assert all(any(torch.equal(image, own) for own in whole.images) for image in truth.images)
    past = short.run().rounds[0]
    assert [(p.examples, p.weight) for p in past.participants] == [(2, 4)] * 3


def test_a_peer_knows_what_its_own_update_weighs(federation: Federation) -> None:
    seen, _ = observe(federation, PeerView(0), Knows())
    assert seen.own is not None
    assert seen.knows.sizes is not None
    assert seen.own.share == pytest.approx(seen.knows.sizes[-1] / seen.knows.examples)
    blind, _ = observe(federation, PeerView(0), Knows(examples=False, lr=False))
    assert blind.own is not None
    assert blind.own.share is None
    assert blind.knows.examples == len(blind.own.labels) + 1
    assert (blind.knows.sizes, blind.knows.clients, blind.knows.training, blind.knows.lr) == (None, 1, None, None)
    assert blind.knows.steps == seen.knows.steps


def test_facts_that_came_later_leave_older_names_alone() -> None:
    assert identity_text(Knows()) == ("fedglass.Knows(training=True, steps=False, labels=False, batch_labels=False)")
    assert "lr=False" in identity_text(Knows(lr=False))
