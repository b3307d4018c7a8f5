"""The filters beside real payloads, without a network."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from nvflare.apis.dxo import DXO, DataKind
from nvflare.apis.fl_constant import FLContextKey, ReservedKey, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.app_common.filters.dxo_blocker import DXOBlocker
from nvflare.app_common.filters.exclude_vars import ExcludeVars
from nvflare.app_common.filters.percentile_privacy import PercentilePrivacy
from nvflare.app_common.filters.svt_privacy import SVTPrivacy
from torch import nn

from fedglass.federation.truth import Truths
from fedglass.recorders.hooks import TrainingReader
from fedglass.recorders.nvflare import ReceivedFilter, SentFilter, TrainingBegins, TrainingEnds, defences_of
from fedglass.recordings.facts import EXTRA_ARRAYS, preferred
from fedglass.recordings.observed import contradictions_of
from fedglass.recordings.reader import read_bundle


def context(client: str, *, peer: bool) -> FLContext:
    """A context as a server has it of a client, or a client of itself."""
    own, other = FLContext(), FLContext()
    (other if peer else own).set_prop(ReservedKey.IDENTITY_NAME, client)
    own.set_peer_context(other)
    return own


def payload(arrays: dict[str, Any], index: int = 0, kind: str = DataKind.WEIGHTS, **meta: Any) -> Shareable:
    shareable = DXO(kind, arrays, meta).to_shareable()
    shareable.set_header("current_round", index)
    shareable.set_return_code(ReturnCode.OK)
    return shareable


ZERO, ONE = {"w": np.zeros(3, np.float32)}, {"w": np.ones(3, np.float32)}


def test_rounds_are_recorded_as_they_pass(tmp_path: Path) -> None:
    sent, received = SentFilter(str(tmp_path / "b"), {"rule": {"name": "mean"}}), ReceivedFilter(str(tmp_path / "b"))
    for index, (before, after) in enumerate([(ZERO, ONE), (ONE, ZERO)]):
        for client in ("site-1", "site-2"):
            ctx = context(client, peer=True)
            out, back = payload(before, index), payload(after, index, NUM_STEPS_CURRENT_ROUND=4)
            assert sent.process(out, ctx) is out
            assert received.process(back, ctx) is back

    bundle = read_bundle(tmp_path / "b")

    assert bundle.clients == ("site-1", "site-2")
    first, second = bundle.rounds[0], bundle.rounds[1]
    assert first.aggregated is not None
    assert torch.equal(bundle.arrays(first.aggregated)["w"], torch.ones(3))
    assert second.aggregated is None  # the last global model passes no filter
    assert preferred(bundle.facts_of("site-2", 1), "weight") == 4.0
    assert preferred(bundle.facts_of("site-2", 1), "examples") is None


def test_a_difference_is_recorded_as_one(tmp_path: Path) -> None:
    ReceivedFilter(str(tmp_path / "b")).process(payload(ONE, kind=DataKind.WEIGHT_DIFF), context("a", peer=True))

    message = read_bundle(tmp_path / "b").rounds[0].messages[0].received

    assert message is not None
    assert message.form == "update"


def test_arrays_beside_the_model_are_told(tmp_path: Path) -> None:
    """SCAFFOLD's control variates are gradients too, and no attack reads them."""
    reply = payload(ONE, SCAFFOLD_CTRL_DIFF={"w": np.ones(3), "b": torch.ones(2, 2)}, NUM_STEPS_CURRENT_ROUND=4)
    ReceivedFilter(str(tmp_path / "b")).process(reply, context("a", peer=True))
    ReceivedFilter(str(tmp_path / "b")).process(payload(ONE, hist=[1.0, 2.0]), context("c", peer=True))

    bundle = read_bundle(tmp_path / "b")

    told = preferred(bundle.facts_of("a", 0), EXTRA_ARRAYS)
    assert told == {"SCAFFOLD_CTRL_DIFF": {"w": [3], "b": [2, 2]}}
    assert EXTRA_ARRAYS not in bundle.facts_of("c", 0)


def test_an_error_is_an_absence_that_is_told(tmp_path: Path) -> None:
    reply = make_reply(ReturnCode.EXECUTION_EXCEPTION)
    reply.set_header("current_round", 0)
    ReceivedFilter(str(tmp_path / "b")).process(reply, context("a", peer=True))
    assert read_bundle(tmp_path / "b").rounds[0].messages[0].absent == "EXECUTION_EXCEPTION"


def test_who_sends_what_no_filter_can_see_was_there(tmp_path: Path) -> None:
    """Called absent, its message would count as one that tells nothing."""
    reply = Shareable({"secret": 1})
    reply.set_header("current_round", 0)
    ReceivedFilter(str(tmp_path / "b")).process(reply, context("a", peer=True))
    bundle = read_bundle(tmp_path / "b")
    (message,) = bundle.rounds[0].messages
    assert message.absent is None
    assert message.received is None
    assert preferred(bundle.facts_of("a", 0), "x-unseen") == "its reply holds no model that a filter can see"


def test_training_in_another_thread_is_read(tmp_path: Path) -> None:
    images, labels = torch.rand(5, 1, 4, 4), torch.arange(5) % 3
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 3))

    def train() -> None:
        optimiser = torch.optim.Adam(model.parameters(), lr=0.01)
        nn.CrossEntropyLoss()(model(images), labels).backward()
        optimiser.step()

    ctx, folder = context("site-1", peer=False), str(tmp_path / "clients")
    TrainingBegins(folder, keep_examples=True).process(payload(ZERO), ctx)
    worker = threading.Thread(target=train)
    worker.start()
    worker.join()
    TrainingEnds(folder, str(tmp_path / "truth"), None, [[0.0], [1.0]]).process(payload(ONE), ctx)

    told = read_bundle(tmp_path / "clients" / "site-1").facts_of("site-1", 0)
    assert [preferred(told, name) for name in ("optimiser", "lr", "steps", "examples")] == ["Adam", 0.01, 1, 5]
    own = Truths.load(tmp_path / "truth" / "site-1").examples["site-1"]
    assert torch.equal(own.images, images)
    assert torch.equal(own.labels, labels)


def runs(result_filters: list[Any], site_filters: list[Any] | None = None) -> FLContext:
    """A client's context while it runs a task."""
    ctx = context("site-1", peer=False)
    runner = SimpleNamespace(task_result_filters={"train/out": result_filters, "validate/out": [SVTPrivacy()]})
    ctx.set_prop(FLContextKey.RUNNER, runner, private=True, sticky=False)
    ctx.set_prop(FLContextKey.TASK_NAME, "train", private=True, sticky=False)
    if site_filters is not None:
        scope = SimpleNamespace(task_result_filters={"out": site_filters, "in": [ExcludeVars("b")]})
        ctx.set_prop(FLContextKey.SCOPE_OBJECT, scope, private=True, sticky=False)
    return ctx


def test_a_training_that_could_not_be_followed_is_told_as_such(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where listening ends before the first step, as by gradients of single examples."""

    def failing(reader: TrainingReader, *given: object) -> None:
        raise RuntimeError("of an odd module")

    monkeypatch.setattr(TrainingReader, "_on_enter", failing)
    model, ctx = nn.Linear(4, 3), context("site-1", peer=False)
    TrainingBegins(str(tmp_path / "clients")).process(payload(ZERO), ctx)
    nn.functional.cross_entropy(model(torch.rand(2, 4)), torch.tensor([0, 1])).backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    TrainingEnds(str(tmp_path / "clients")).process(payload(ONE), ctx)

    assert list(read_bundle(tmp_path / "clients" / "site-1").facts_of("site-1", 0)) == [
        "x-reservations",
        "x-reservation-ids",
    ]


def test_other_filters_of_the_client_are_its_defences_with_their_options(tmp_path: Path) -> None:
    ends = TrainingEnds(str(tmp_path))
    ctx = runs(
        [ends, PercentilePrivacy(percentile=20, gamma=0.5), DXOBlocker([DataKind.METRICS])], [ExcludeVars("h.*")]
    )

    assert defences_of(ctx, DataKind.WEIGHT_DIFF) == [
        {"name": "ExcludeVars", "options": {"exclude_vars": "h.*", "data_kinds": ["WEIGHT_DIFF", "WEIGHTS"]}},
        {
            "name": "percentile_privacy",
            "options": {"percentile": 20, "gamma": 0.5, "steps": 1},
        },
    ]
    assert defences_of(context("site-1", peer=False), DataKind.WEIGHTS) == []


def test_a_filter_of_another_kind_of_message_protects_nothing() -> None:
    ctx = runs([PercentilePrivacy(data_kinds=[DataKind.WEIGHT_DIFF])])

    assert defences_of(ctx, DataKind.WEIGHTS) == []
    assert len(defences_of(ctx, DataKind.WEIGHT_DIFF)) == 1


def test_what_a_message_passed_is_told_beside_what_is_declared_of_it(tmp_path: Path) -> None:
    protected = PercentilePrivacy(percentile=0, gamma=100.0)
    reply = protected.process(payload(ONE, kind=DataKind.WEIGHT_DIFF), context("a", peer=False))
    SentFilter(str(tmp_path / "b"), {"defences": []}).process(payload(ZERO), context("a", peer=True))
    ReceivedFilter(str(tmp_path / "b")).process(reply, context("a", peer=True))

    bundle = read_bundle(tmp_path / "b")

    assert preferred(bundle.facts_of("a", 0), "filters") == ["PercentilePrivacy"]
    (found,) = contradictions_of(bundle, 0)
    assert "went through filter 'PercentilePrivacy', which no declared defence mentions" in found.text


def test_a_filter_that_can_not_write_passes_everything_on(tmp_path: Path) -> None:
    (tmp_path / "b").write_text("no folder")
    shareable = payload(ONE)

    assert ReceivedFilter(str(tmp_path / "b")).process(shareable, context("a", peer=True)) is shareable


def test_what_a_reply_holds_beside_its_model_is_told(tmp_path: Path) -> None:
    """SCAFFOLD's control variates travel among the properties of the message: a defence of the weights misses them."""
    reply = payload(ONE, NUM_STEPS_CURRENT_ROUND=4, scaffold_c_diff={"w": np.ones((2, 3))}, site="a")
    reply["picture"] = b"0123"
    SentFilter(str(tmp_path / "b")).process(payload(ZERO), context("a", peer=True))
    ReceivedFilter(str(tmp_path / "b")).process(reply, context("a", peer=True))
    ReceivedFilter(str(tmp_path / "b")).process(payload(ONE, NUM_STEPS_CURRENT_ROUND=4), context("b", peer=True))

    bundle = read_bundle(tmp_path / "b")

    assert preferred(bundle.facts_of("a", 0), "x-further-arrays") == {"picture": [4], "scaffold_c_diff": {"w": [2, 3]}}
    assert preferred(bundle.facts_of("b", 0), "x-further-arrays") is None


def test_a_message_that_could_not_be_taken_down_is_seen_in_the_bundle(tmp_path: Path) -> None:
    SentFilter(str(tmp_path / "b")).process(payload(ZERO), context("a", peer=True))
    ReceivedFilter(str(tmp_path / "b")).process(payload({"w": "no array"}), context("a", peer=True))

    assert preferred(read_bundle(tmp_path / "b").facts, "x-lost") is True
