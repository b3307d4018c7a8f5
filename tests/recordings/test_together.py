"""Rounds of a bundle that are attacked together: each message must be as declared, and the data the same."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fedglass.audit.audit import Job
from fedglass.audit.check_message import message_doubts
from fedglass.audit.recorded import Recorded
from fedglass.audit.target import Target, coverage_doubts, joint_doubts, ready_target
from fedglass.checks.noise import replayed, without_noise
from fedglass.core.errors import UsageError
from fedglass.core.tensors import Params
from fedglass.federation.views import AggregateView, ServerView, Together, ViewResult
from fedglass.plan.compile import compile_plan
from fedglass.plan.draft import draft
from fedglass.plan.schema import parse_plan
from fedglass.recordings import BundleWriter
from fedglass.recordings.facts import EXTRA_ARRAYS
from fedglass.verdict.doubts import DoubtKind, doubt

from .federations import Real, State, examples

ATTACK = '[[attacks]]\nname = "inverting_gradients"\niterations = 3\n[metrics]\nnames = ["psnr"]\n'


def job(folder: Path, together: str, keys: str = "", adversary: str = "") -> Job:
    table = f'[recording]\nbundle = "b"\ntruth = "b-truth"\nrounds = "all"\n{keys}\n'
    return compile_plan(parse_plan(f"{table}[adversary]\ntogether = {together}\n{adversary}\n{ATTACK}"), folder)


def source(found: Job) -> Recorded:
    (only,) = found.sources
    assert isinstance(only, Recorded)
    return only


def targets(found: Job) -> list[Target]:
    return [ready_target(target) for target in source(found).targets(lambda done, total: None)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    Real(sizes=(1, 2), rounds=3).record(tmp_path / "b")
    return tmp_path


def rounds_of(client: int) -> Together:
    return Together(tuple(ServerView(client, index) for index in (1, 2, 3)))


def test_all_rounds_of_a_client_are_one_message(folder: Path) -> None:
    found = job(folder, "true")
    assert source(found).views == (rounds_of(0), rounds_of(1))
    (first, second) = targets(found)
    assert [len(target.observation.also) for target in (first, second)] == [2, 2]
    assert [target.further for target in (first, second)] == [0, 0]
    assert {len(target.joint_targets) for target in (first, second)} == {2}


def test_rounds_can_be_attacked_one_by_one_and_together(folder: Path) -> None:
    found = job(folder, '"also"', adversary='view = "aggregate"')
    alone = tuple(AggregateView(index) for index in (1, 2, 3))
    assert source(found).views == (*alone, Together(alone))
    # What the others tell is looked at in the last one.
    assert [target.further for target in targets(found)] == [0, 0, 0, 0]


def test_rounds_that_nothing_attacks_are_told(folder: Path) -> None:
    text = '[recording]\nbundle = "b"\ntruth = "b-truth"\nrounds = [1, 3]\n[adversary]\ntogether = "also"\n'
    assert {target.further for target in targets(compile_plan(parse_plan(text + ATTACK), folder))} == {1}


def test_a_client_of_one_round_is_looked_at_alone(tmp_path: Path) -> None:
    Real(sizes=(1,), rounds=1).record(tmp_path / "b")
    assert source(job(tmp_path, '"also"')).views == (ServerView(0, 1),)
    with pytest.raises(UsageError, match="at least two"):
        job(tmp_path, "true")


def kinds(target: Target) -> list[DoubtKind]:
    return [each.kind for each in message_doubts(target)]


def test_every_message_must_be_as_declared(folder: Path) -> None:
    """A later round whose message is another one hides what the earlier would tell: nothing may pass with it."""
    first = targets(job(folder, "true"))[0]
    assert DoubtKind.NOT_AS_DECLARED not in kinds(first)
    last = first.joint_targets[-1]
    assert last.claim is not None
    noise = {name: torch.randn_like(t) * t.std() for name, t in last.claim.update.items()}
    other = replace(last, claim=replace(last.claim, update=noise))
    forged = replace(first, joint_targets=(*first.joint_targets[:-1], other))
    assert DoubtKind.NOT_AS_DECLARED in kinds(forged)


def test_the_doubts_of_all_rounds_count(folder: Path) -> None:
    first = targets(job(folder, "true"))[0]
    assert DoubtKind.NOT_AS_DECLARED not in kinds(first)
    doubted = replace(
        first,
        joint_targets=(
            replace(first.joint_targets[0], doubts=(doubt(DoubtKind.NOT_AS_DECLARED, found="it was swapped"),)),
        ),
    )
    (found,) = [each for each in message_doubts(doubted) if each.kind is DoubtKind.NOT_AS_DECLARED]
    assert "it was swapped" in str(found.details["found"])


def test_what_nobody_reads_in_a_later_round_is_told(folder: Path) -> None:
    """A control variate that only the last message brings may hold the examples as well."""
    writer = BundleWriter(folder / "b", resume=True)
    writer.training("client 0", 3, {EXTRA_ARRAYS: {"control": [1, 5, 5]}}, source="read")
    first, second = targets(job(folder, "true"))
    first_payload, second_payload = (
        [d for d in t.doubts if d.kind is DoubtKind.EXTRA_PAYLOAD] for t in (first, second)
    )
    assert first_payload == [doubt(DoubtKind.EXTRA_PAYLOAD, names=["control"])]
    assert second_payload == []


def test_a_wrong_number_of_examples_in_a_later_round_is_told(folder: Path) -> None:
    first = targets(job(folder, "true"))[0]
    assert DoubtKind.WRONG_COUNT not in [each.kind for each in first.doubts]
    later = first.joint_targets[0].observation
    seen = ViewResult(replace(later, knows=replace(later.knows, examples=9)), first.contributors)
    (wrong,) = coverage_doubts(seen, first.truth, ())
    assert wrong == doubt(DoubtKind.WRONG_COUNT, stated=9, true=1)
    assert joint_doubts([first, replace(first.joint_targets[0], doubts=(wrong,))]) == (wrong,)


def test_without_its_defence_every_round_is_without_it(tmp_path: Path) -> None:
    def noisy(before: State, after: State) -> State:
        return {name: tensor + 0.01 * torch.randn_like(tensor) for name, tensor in after.items()}

    noise = [{"name": "gaussian_noise", "options": {"std": 0.01}}]
    Real(sizes=(1,), rounds=2, leaves=noisy).record(tmp_path / "b", defences=noise)
    (target,) = targets(job(tmp_path, "true"))
    assert len(target.joint_targets) == 1
    for each in (target, *target.joint_targets):
        assert each.claim is not None
        bare = replayed(without_noise(each.claim))
        assert 0.005 < difference(each.observation.update, bare) < 0.02


def difference(one: Params, other: Params) -> float:
    return float(torch.cat([(one[name] - other[name]).flatten() for name in one]).std())


def test_a_plan_of_a_bundle_attacks_its_rounds_together_too(folder: Path) -> None:
    assert '\ntogether = "also"' in draft(folder / "b").text


@pytest.mark.parametrize("reason", ["one round", "no truth", "other data"])
def test_rounds_of_unknown_or_other_data_are_left_apart(tmp_path: Path, reason: str) -> None:
    writer = Real(sizes=(2,), rounds=1 if reason == "one round" else 2).record(tmp_path / "b")
    if reason == "no truth":
        (tmp_path / "b-truth").rename(tmp_path / "elsewhere")
    if reason == "other data":
        writer.truth("client 0", *examples(0, 2), batches={1: [[0]], 2: [[1]]})
    assert '\ntogether = "also"' not in draft(tmp_path / "b").text


def test_rounds_that_were_not_recorded_may_have_had_the_same_data(tmp_path: Path) -> None:
    writer = Real(sizes=(1,), rounds=1).record(tmp_path / "b")
    state = dict(Real().model().state_dict())
    later = writer.round(5)
    later.sent(state)
    later.received("client 0", {name: tensor + 0.01 for name, tensor in state.items()}, examples=1)
    assert {target.further for target in targets(job(tmp_path, "true"))} == {1}
