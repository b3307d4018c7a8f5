"""Records say in short from where somebody looks, who is behind the message, and whose each image is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import torch

from fedglass.audit.audit import Job, run
from fedglass.audit.simulated import Simulated
from fedglass.audit.target import target_infos
from fedglass.federation.federation import Federation
from fedglass.federation.peer import PeerView
from fedglass.federation.views import AggregateView, ServerView, View
from fedglass.recipes import recipe

Make = Callable[..., Federation]
OTHERS = ["client 0", "client 2"]


@pytest.mark.parametrize(
    ("view", "name", "standpoint", "behind"),
    [
        (ServerView(client=1), "ours: server, client 1", "server", ["client 1"]),
        (AggregateView(), "ours: aggregate", "aggregate", ["client 0", "client 1", "client 2"]),
        (PeerView(client=1), "ours: peer 1", "peer", OTHERS),
    ],
)
def test_names_and_owners(
    make_federation: Make, tmp_path: Path, view: View, name: str, standpoint: str, behind: list[str]
) -> None:
    attacks = {"inverting_gradients": recipe("inverting_gradients", iterations=2)}
    source = Simulated(make_federation(clients=3, examples=2), views=(view,), name="ours")
    (record,) = run(Job([source], attacks, metrics=("psnr",)), tmp_path).searches
    assert (record.view_name, record.standpoint, record.contributors) == (name, standpoint, behind)
    assert record.owners == [client for client in behind for _ in range(2)]
    assert len(record.owners) == len(record.metrics["psnr"])
    assert record.finished is not None
    assert abs(datetime.now(UTC) - datetime.fromisoformat(record.finished)) < timedelta(days=1)


def test_owners_follow_the_examples(make_federation: Make) -> None:
    """The images under a name are that client's, and the adversary's own have no place among them."""
    truths = make_federation(clients=3, examples=2).truths((0,))
    truth = truths.truth_of(("client 2", "client 0"), 0, own_client="client 1").private
    for name in OTHERS:
        rows = [i for i, owner in enumerate(truth.owners) if owner == name]
        assert torch.equal(truth.images[rows], truths.of(name, 0).images)


@dataclass(frozen=True)
class Nameless:
    """A view of somebody else, which has a description alone."""

    inner: ServerView

    def rounds(self) -> tuple[int, ...]:
        return self.inner.rounds()

    def check(self, attendance: Any) -> None:
        self.inner.check(attendance)

    def see(self, transcript: Any, knows: Any, truths: Any) -> Any:
        return self.inner.see(transcript, knows, truths)

    def describe(self) -> str:
        return "somebody sees something"


def test_a_view_need_not_have_a_short_name() -> None:
    (info,) = target_infos("ours", [Nameless(ServerView())], (), lambda index: ())
    assert (info.text, info.name, info.standpoint) == ("ours: somebody sees something", "", "")
