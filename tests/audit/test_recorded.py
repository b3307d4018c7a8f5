"""A transcript, saved and loaded, is audited as the simulation that it came from."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedglass.api import Audit
from fedglass.audit.audit import Job, run
from fedglass.audit.recorded import Recorded
from fedglass.audit.simulated import Simulated
from fedglass.core.errors import UsageError
from fedglass.ledger.records import Record
from fedglass.models.catalogue import build
from fedglass.models.init import Uniform
from fedglass.recipes.catalogue import recipe
from fedglass.rounds.federation import Federation
from fedglass.rounds.transcript import Transcript
from fedglass.rounds.truth import Truths
from fedglass.rounds.views.aggregate import AggregateView
from fedglass.rounds.views.peer import PeerView
from fedglass.rounds.views.server import ServerView
from fedglass.rounds.views.view import Knows, View

Make = Callable[..., Federation]
VIEWS: tuple[View, ...] = (ServerView(1), AggregateView(1), PeerView(0, 1))
KNOWS = Knows(labels=True)


def lines(records: Any) -> list[dict[str, object]]:
    """All that a record says but for the time and memory it took."""
    return [
        {**r.model_dump(), "seconds": None, "peak_mib": None, "finished": None}
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
    assert len(one.records) == 6
    assert lines(one.records) == lines(other.records)


def test_without_truths_there_is_no_score(make_federation: Make, tmp_path: Path) -> None:
    transcript = make_federation(clients=2).run()
    audit = Audit(transcript, {"short": recipe("inverting_gradients", iterations=2)}, metrics=("psnr",))
    result = audit.run(tmp_path)
    assert result.verdict.exit_code == 3
    assert [flag.name for flag in result.records[0].flags] == ["no truth"]
    assert result.records[0].defences is None


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
    assert Recorded(transcript, truths).identity() == simulated.identity()
    some = Truths({"client 0": truths.examples["client 0"]})
    assert len({Recorded(transcript, known).identity() for known in (None, some, truths)}) == 3
