"""A transcript, saved and loaded, gives the figures of the simulation that it came from, and is played again."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedglass.api import Audit
from fedglass.audit.audit import Job, run
from fedglass.audit.check_message import message_doubts
from fedglass.audit.recorded import Recorded
from fedglass.audit.simulated import Simulated
from fedglass.audit.target import Target
from fedglass.checks.replay import replay
from fedglass.core.errors import UsageError
from fedglass.federation.federation import Federation
from fedglass.federation.peer import PeerView
from fedglass.federation.transcript import Transcript
from fedglass.federation.truth import Examples, Truths
from fedglass.federation.views import AggregateView, Knows, ServerView, View
from fedglass.models.catalogue import build
from fedglass.models.init import Uniform
from fedglass.recipes import recipe
from fedglass.verdict.doubts import DoubtKind
from fedglass.verdict.records import Record

Make = Callable[..., Federation]
VIEWS: tuple[View, ...] = (ServerView(1), AggregateView(1), PeerView(0, 1))
KNOWS = Knows(labels=True)


def lines(records: Any) -> list[dict[str, object]]:
    """All that a record says but for the time and memory it took, and its key."""
    left = dict.fromkeys(("seconds", "peak_mib", "finished"))
    return [
        json.loads(json.dumps({**r.model_dump(), **left}, default=repr).replace(r.key, "the key"))
        for r in records
        if isinstance(r, Record)
    ]


def test_a_saved_transcript_gives_bit_identical_records(make_federation: Make, tmp_path: Path) -> None:
    attacks = {"inverting_gradients": recipe("inverting_gradients", iterations=4), "sme": recipe("sme", iterations=4)}
    simulated = Simulated(make_federation(clients=3, examples=2), 2, VIEWS, KNOWS, "ours")
    simulated.transcript().save(tmp_path / "said")
    simulated.truths().save(tmp_path / "private")
    model = build("lenet", shape=(1, 12, 12), classes=4, init=Uniform(), seed=9)  # its own weights mean nothing
    transcript, truths = Transcript.load(tmp_path / "said", model), Truths.load(tmp_path / "private")
    recorded = Recorded(transcript, truths, VIEWS, KNOWS, "ours")
    names = ("psnr", "ssim")
    one, other = (
        run(Job([source], attacks, metrics=names), tmp_path / str(i)) for i, source in enumerate((simulated, recorded))
    )
    assert len(one.searches) == 6
    assert lines(one.searches) == lines(other.searches)
    played = [record.extra.get("replay") for record in other.records if record.kind == "certificate"]
    assert [each["explained"] for (each,) in played] == [True, True, True]  # type: ignore[index,misc,union-attr]


def test_what_lies_on_a_disk_is_played_again(make_federation: Make, tmp_path: Path) -> None:
    """Files may have been edited or exchanged, and their manifest with them."""
    simulated = Simulated(make_federation(clients=2, examples=2))
    (fresh,) = simulated.targets(lambda done, total: None)
    assert isinstance(fresh, Target)
    assert fresh.simulated
    simulated.transcript().save(tmp_path)
    loaded = Transcript.load(tmp_path, simulated.federation.model)
    assert loaded.origin
    (target,) = Recorded(loaded, simulated.truths()).targets(lambda done, total: None)
    assert not target.simulated
    assert target.claim is not None
    found = replay(target.claim)
    assert found is not None
    assert found.explained
    other = Truths({name: Examples(e.images.flip(-1), e.labels) for name, e in simulated.truths().examples.items()})
    (target,) = Recorded(loaded, other).targets(lambda done, total: None)
    assert target.claim is not None
    found = replay(target.claim)
    assert found is not None
    assert not found.explained


def test_an_edited_message_is_another_case(make_federation: Make) -> None:
    """Records of the message as it was are not taken for its own."""
    simulated = Simulated(make_federation(clients=2, examples=2))
    said, truths = simulated.transcript(), simulated.truths()
    past = said.rounds[0]
    first, *rest = past.messages
    other = replace(first, update={name: 2 * tensor for name, tensor in first.update.items()})
    edited = replace(said, rounds={0: replace(past, messages=(other, *rest))})
    assert edited.origin == said.origin
    assert Recorded(edited, truths).identity() != Recorded(said, truths).identity()


def test_what_cannot_be_run_again_is_named(make_federation: Make) -> None:
    simulated = Simulated(make_federation(clients=2, examples=2), views=(AggregateView(),))
    said, truths = simulated.transcript(), simulated.truths()

    def kinds(**terms: Any) -> list[DoubtKind]:
        (target,) = Recorded(replace(said, terms=replace(said.terms, **terms)), truths, simulated.views).targets(
            lambda done, total: None
        )
        return [each.kind for each in (*target.doubts, *message_doubts(target))]

    assert kinds() == []
    assert kinds(rule="Krum(byzantine=1)") == [DoubtKind.NOT_REPLAYED]
    assert kinds(behaviours=("client 1 flips the sign of its update.",)) == [DoubtKind.NOT_REPLAYED]
    assert kinds(defences={"client 0": ("Defended by something.",)}) == [DoubtKind.DEFENCE_NOT_NAMED]


def test_without_truths_there_is_no_score(make_federation: Make, tmp_path: Path) -> None:
    transcript = make_federation(clients=2).run()
    audit = Audit(transcript, {"short": recipe("inverting_gradients", iterations=2)}, metrics=("psnr",))
    result = audit.run(tmp_path)
    assert result.verdict.exit_code == 3
    (record,) = result.searches
    assert [each.kind for each in record.doubts] == [DoubtKind.NO_TRUTH]
    assert record.defences is None


def test_views_that_a_transcript_has_not_are_refused(make_federation: Make) -> None:
    transcript = make_federation(clients=2).run(3, keep=(2,))
    with pytest.raises(UsageError, match=r"adversary\.round must be one of 2, got 0"):
        Recorded(transcript)


def test_what_was_said_decides_the_identity(make_federation: Make) -> None:
    one, other = (Recorded(make_federation(seed=seed, examples=2).run()).identity() for seed in (0, 0))
    assert one == other
    lower = Recorded(make_federation(lr=0.05, examples=2).run()).identity()
    assert lower != one


def test_the_truths_are_a_part_of_the_identity(make_federation: Make) -> None:
    """Records that were not scored for want of a truth are not those of an audit that has it."""
    simulated = Simulated(make_federation(clients=2, examples=2))
    transcript, truths = simulated.transcript(), simulated.truths()
    some = Truths({"client 0": truths.examples["client 0"]})
    round_ = (0, "client 0")  # Opacus's samples leave rows out, and each step takes its own
    taken = replace(truths, taken={round_: (1,)}, order={})
    both = replace(taken, order={round_: ((1,), (1,))})
    assert len({Recorded(transcript, known).identity() for known in (None, some, truths, taken, both)}) == 5
