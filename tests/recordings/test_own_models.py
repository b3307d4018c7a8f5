"""Clients that were sent a model of their own: their messages are read from that one, and from no other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from click.testing import Result

from fedglass.audit.audit import run
from fedglass.checks.replay import replay
from fedglass.core.errors import UsageError
from fedglass.core.tensors import Params
from fedglass.federation.peer import PeerView
from fedglass.federation.views import AggregateView, ServerView
from fedglass.models.catalogue import build
from fedglass.models.init import Uniform
from fedglass.recordings import BundleWriter, read_bundle
from fedglass.recordings.observed import contradictions_of
from fedglass.recordings.selection import select_messages
from fedglass.verdict.records import Record

from .federations import CLASSES, SHAPE, TERMS, Real, State, examples, mean
from .test_plans import job, sources, targets

READ = {"optimiser": "SGD", "lr": 0.1, "steps": 1, "batch_sizes": [1]}
IDLG = '[[attacks]]\nname = "idlg"\niterations = 60\n[metrics]\nnames = ["psnr"]\n'


def wide(seed: int) -> State:
    """Weights of a LeNet as its paper draws them, from which an image comes back."""
    return dict(build("lenet", shape=SHAPE, classes=CLASSES, init=Uniform(), seed=seed).state_dict())


def personalised(
    folder: Path, *, common: bool = True, form: Literal["state", "update"] = "state", **facts: Any
) -> list[State]:
    """A round in which the second of two clients, or each of them, was sent a model of its own."""
    writer, trains, starts = BundleWriter(folder, facts={**TERMS, **facts}), Real(), [wide(1), wide(2)]
    turn, afters = writer.round(1), []
    for i, start in enumerate(starts):
        turn.sent(start, client=None if common and i == 0 else f"client {i}")
        images, labels = examples(i, 1)
        after = trains._trained(trains.model(), start, images, labels)
        told = after if form == "state" else {name: after[name] - start[name] for name in after}
        turn.received(f"client {i}", told, form=form, examples=1)
        writer.training(f"client {i}", 1, READ, source="read")
        writer.truth(f"client {i}", images, labels)
        afters.append(after)
    turn.aggregated(mean(afters, (1, 1)))
    return starts


def equal(one: Params, other: Params) -> bool:
    return all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("common", [True, False])
@pytest.mark.parametrize("form", ["state", "update"])
def test_a_message_is_read_from_the_model_that_its_client_was_sent(
    tmp_path: Path, common: bool, form: Literal["state", "update"]
) -> None:
    starts = personalised(tmp_path / "b", common=common, form=form)
    for target, start in zip(targets(job(tmp_path, 'truth = "b-truth"')), starts, strict=True):
        assert equal(target.observation.before, start)
        assert target.claim is not None
        found = replay(target.claim)
        assert found is not None
        assert found.explained
        assert target.doubts == ()
    assert not equal(starts[0], starts[1])


def test_its_image_comes_back(tmp_path: Path) -> None:
    personalised(tmp_path / "b")
    done = run(job(tmp_path, 'truth = "b-truth"\nwhose = ["client 1"]', attack=IDLG), tmp_path / "out")
    (record,) = (each for each in done.searches if isinstance(each, Record))
    assert min(record.metrics["psnr"]) > 30


def test_its_running_statistics_are_its_own_too(tmp_path: Path) -> None:
    def statistics(by: float) -> State:
        state = dict(build("resnet8", shape=(3, 32, 32), classes=CLASSES).state_dict())
        return {name: t + by if name.endswith(("running_mean", "running_var")) else t for name, t in state.items()}

    terms = {**TERMS, "model": "resnet8", "shape": (3, 32, 32)}
    turn = BundleWriter(tmp_path / "b", facts=terms).round(1)
    turn.sent(statistics(0.0))
    turn.sent(statistics(0.5), client="a")
    moved = {name: t + 0.1 if t.is_floating_point() else t for name, t in statistics(0.5).items()}
    turn.received("a", moved, examples=1)
    (target,) = targets(job(tmp_path))
    running = [name for name in target.observation.buffers if name.endswith("running_mean")]
    assert running
    assert all(bool((target.observation.buffers[name] == 0.5).all()) for name in running)


def test_the_start_is_a_part_of_the_identity(tmp_path: Path) -> None:
    personalised(tmp_path / "b", form="update")
    (source,) = sources(job(tmp_path, 'whose = ["client 1"]'))
    (message,) = source.transcript.rounds[1].messages
    assert message.start is not None
    before = source.identity()
    next(iter(message.start.before.values())).add_(1)
    assert source.identity() != before


def test_the_report_says_whose_model_was_its_own(tmp_path: Path) -> None:
    personalised(tmp_path / "b")
    (source,) = sources(job(tmp_path))
    said = " ".join(line for _, lines in source.threat() for line in lines)
    assert "client 1 was sent a model of its own in round 1" in said
    assert "client 0 was sent" not in said


def test_whose_start_it_is_is_a_part_of_the_identity_too(tmp_path: Path) -> None:
    personalised(tmp_path / "b", form="update")
    (source,) = sources(job(tmp_path))
    past = source.transcript.rounds[1]
    one, other = past.messages
    swapped = replace(past, messages=(replace(one, start=other.start), replace(other, start=None)))
    again = replace(source, transcript=replace(source.transcript, rounds={1: swapped}))
    assert again.identity() != source.identity()


def test_record_info_tells_it(fedglass: Callable[..., Result], tmp_path: Path) -> None:
    personalised(tmp_path / "b")
    told = fedglass("record-info", tmp_path / "b").stdout
    assert "Round 1: sent and aggregated, a model of its own for client 1, 2 messages" in told


def test_an_aggregate_of_them_is_refused_in_a_sentence(tmp_path: Path) -> None:
    personalised(tmp_path / "b")
    with pytest.raises(UsageError, match="in round 1 client 1 was sent a model of its own, so that the aggregate"):
        job(tmp_path, adversary='view = "aggregate"')


def test_an_aggregate_without_them_is_looked_at(tmp_path: Path) -> None:
    personalised(tmp_path / "b")
    BundleWriter(tmp_path / "b", resume=True).round(1).facts({"kept": ["client 0"]})
    assert select_messages(read_bundle(tmp_path / "b"), "aggregate").rounds == (1,)


def test_no_other_view_combines_them(tmp_path: Path) -> None:
    personalised(tmp_path / "b")
    (source,) = sources(job(tmp_path, 'truth = "b-truth"'))
    for view in (AggregateView(1), PeerView(0, 1), PeerView(1, 1)):
        with pytest.raises(UsageError, match="'client 1' was sent a model of its own in round 1"):
            view.see(source.transcript, source.knows, source.truths)
    ServerView(0, 1).see(source.transcript, source.knows, source.truths)


def test_a_saved_transcript_has_no_place_for_it(tmp_path: Path) -> None:
    personalised(tmp_path / "b")
    (source,) = sources(job(tmp_path))
    with pytest.raises(UsageError, match="'client 1' was sent one of its own in round 1: keep the bundle"):
        source.transcript.save(tmp_path / "saved")


def test_a_mean_of_states_is_a_mean_wherever_they_began(tmp_path: Path) -> None:
    personalised(tmp_path / "b")
    assert contradictions_of(read_bundle(tmp_path / "b"), 1) == []
    personalised(tmp_path / "c", defences=[])
    writer = BundleWriter(tmp_path / "c", resume=True)
    writer.training("client 0", 1, {"weight": 5.0}, source="read")
    (found,) = contradictions_of(read_bundle(tmp_path / "c"), 1)
    assert "the aggregate is not the mean" in found.text


def test_a_client_of_whom_nobody_knows_what_it_was_sent_is_left_out(tmp_path: Path) -> None:
    turn = BundleWriter(tmp_path / "b", facts=TERMS).round(1)
    turn.sent(wide(1), client="a")
    for name in "ab":
        turn.received(name, wide(2), examples=1)
    selection = select_messages(read_bundle(tmp_path / "b"), None)
    assert selection.clients_with_updates(1) == ("a",)
    assert selection.skipped == ("b in round 1: the model that it was sent was not recorded",)
