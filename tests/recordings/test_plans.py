"""A plan names a bundle, or a bundle is audited by itself: the same messages as files would be."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedglass.audit.audit import Job, run
from fedglass.audit.check_message import message_doubts
from fedglass.audit.recorded import Recorded
from fedglass.audit.target import Target, ready_target
from fedglass.checks.replay import replay
from fedglass.core.errors import DataError, UpdateError, UsageError
from fedglass.core.types import Training
from fedglass.federation.views import AggregateView, ServerView
from fedglass.models.catalogue import build
from fedglass.plan.compile import compile_plan
from fedglass.plan.draft import draft
from fedglass.plan.schema import parse_plan
from fedglass.recordings import BundleWriter, read_bundle
from fedglass.recordings.facts import preferred
from fedglass.recordings.selection import select_messages
from fedglass.verdict.doubts import DoubtKind

from .federations import CLASSES, SHAPE, TERMS, Real, State, examples

ATTACK = '[[attacks]]\nname = "inverting_gradients"\niterations = 3\n[metrics]\nnames = ["psnr"]\n'


def job(folder: Path, keys: str = "", adversary: str = "", attack: str = ATTACK) -> Job:
    text = f'[recording]\nbundle = "b"\n{keys}\n[adversary]\n{adversary}\n{attack}'
    return compile_plan(parse_plan(text), folder)


def sources(job: Job) -> list[Recorded]:
    found = []
    for source in job.sources:
        assert isinstance(source, Recorded)
        found.append(source)
    return found


def targets(job: Job) -> list[Target]:
    return [ready_target(target) for source in job.sources for target in source.targets(lambda done, total: None)]


def details(target: Target, kind: DoubtKind) -> dict[str, Any]:
    """The details of a doubt that the source already has; empty where it has none of this kind."""
    return next((doubt.details for doubt in target.doubts if doubt.kind is kind), {})


def unread(target: Target) -> tuple[str, ...]:
    return tuple(details(target, DoubtKind.EXTRA_PAYLOAD).get("names", ()))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    Real(sizes=(1, 2), rounds=3).record(tmp_path / "b")
    return tmp_path


def test_the_first_and_the_last_round_are_looked_at(folder: Path) -> None:
    (source,) = sources(job(folder))
    expected = [ServerView(client, index) for index in (1, 3) for client in (0, 1)]
    assert list(source.views) == expected
    assert source.infos()[-1].text == "b: the server sees the update of client 1 in round 3"


def in_turn(folder: Path, present: dict[int, tuple[str, ...]], unsent: tuple[int, ...] = ()) -> None:
    """A federation whose clients take part in some rounds alone; of some rounds the model that was sent is missing."""
    state, writer = dict(Real().model().state_dict()), BundleWriter(folder / "b", facts=TERMS)
    for index, names in present.items():
        if index not in unsent:
            writer.round(index).sent(state)
        for name in names:
            after = {key: tensor + 0.01 * index for key, tensor in state.items()}
            writer.round(index).received(name, after, examples=1)
            told = {"optimiser": "SGD", "lr": 0.1, "steps": 1, "batch_sizes": [1]}
            writer.training(name, index, told, source="read")


def test_nobody_is_passed_over_who_took_part_in_other_rounds(tmp_path: Path) -> None:
    in_turn(tmp_path, {1: ("a",), 2: ("a", "b"), 3: ("b",), 4: ("c", "b"), 5: ("a",)})
    (source,) = sources(job(tmp_path))
    assert [view.rounds()[-1] for view in source.views] == [1, 2, 2, 4, 4, 5]
    assert source.unaudited_clients == ()


def test_who_can_not_be_looked_at_is_not_passed_over_in_silence(tmp_path: Path) -> None:
    in_turn(tmp_path, {1: ("a",), 2: ("b",), 3: ("a",)}, unsent=(2,))
    (source,) = sources(job(tmp_path))
    assert source.unaudited_clients == ("b",)
    assert all(
        details(target, DoubtKind.CLIENTS_NOT_AUDITED) == {"clients": ["'b'"]} for target in targets(job(tmp_path))
    )
    (source,) = sources(job(tmp_path, 'rounds = "all"'))
    assert source.unaudited_clients == ("b",), "all means everybody"
    (source,) = sources(job(tmp_path, "rounds = [1]"))
    assert source.unaudited_clients == (), "who names the rounds has decided"
    (source,) = sources(job(tmp_path, 'whose = ["a"]'))
    assert source.unaudited_clients == (), "who names the clients has decided"


def test_a_message_that_the_rule_left_out_was_seen_by_the_server(tmp_path: Path) -> None:
    """Each of them tells more of the same examples, whatever became of it."""
    in_turn(tmp_path, {1: ("a", "b"), 2: ("a", "b")})
    writer = BundleWriter(tmp_path / "b", resume=True)
    writer.round(2).facts({"kept": ["b"]}, source="read")
    found = targets(job(tmp_path, "rounds = [1]"))
    assert [target.further for target in found] == [1, 1]


def test_a_truth_of_another_number_than_was_told_is_noticed(folder: Path) -> None:
    assert not any(details(target, DoubtKind.WRONG_COUNT) for target in targets(job(folder, 'truth = "b-truth"')))
    images, labels = examples(1, 2)
    BundleWriter(folder / "b", resume=True).truth("client 1", images[:1], labels[:1])
    found = [
        details(target, DoubtKind.WRONG_COUNT) for target in targets(job(folder, 'truth = "b-truth"\nrounds = [1]'))
    ]
    assert found == [{}, {"stated": 2, "true": 1}]


class Remembers(torch.nn.Module):
    """A network that keeps what it was last given in a buffer of its own, which leaves with its state."""

    def __init__(self, shape: tuple[int, int, int] = SHAPE, classes: int = CLASSES) -> None:
        super().__init__()
        self.body = build("lenet", shape=shape, classes=classes)
        self.register_buffer("seen", torch.zeros(shape))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.seen = inputs[0].detach()
        out: torch.Tensor = self.body(inputs)
        return out


def test_what_no_attack_reads_is_named(tmp_path: Path) -> None:
    """Buffers that a network has made itself, and arrays beside the model's, may hold the examples as they are."""
    writer = Real(sizes=(1,), rounds=1, model=Remembers).record(tmp_path / "b", model=None)
    keys = f'truth = "b-truth"\nmodel = "{__name__}:Remembers"'
    (target,) = targets(job(tmp_path, keys))
    assert unread(target) == ("seen",)
    writer.training("client 0", 1, {"x-further-arrays": {"control": {"0": [3]}}}, source="read")
    (target,) = targets(job(tmp_path, keys))
    assert unread(target) == ("seen", "control")


def test_an_aggregate_of_nobody_knows_whom_is_not_scored_by_somebody_s_truth(tmp_path: Path) -> None:
    model = Real().model()
    writer = BundleWriter(tmp_path / "b", facts={**TERMS, "sees": "aggregate"})
    writer.round(1).sent(model.state_dict())
    writer.round(1).aggregated({name: tensor + 0.01 for name, tensor in model.state_dict().items()})
    writer.truth("a", *examples(0, 1))
    (source,) = sources(job(tmp_path, 'truth = "b-truth"\nexamples = 1\ntraining = { lr = 0.1 }'))
    assert source.truths is None


def test_rounds_and_clients_can_be_chosen(folder: Path) -> None:
    (source,) = sources(job(folder, 'rounds = [2]\nwhose = ["client 1"]'))
    assert source.views == (ServerView(1, 2),)
    (source,) = sources(job(folder, 'rounds = "all"', 'view = "aggregate"'))
    assert source.views == (AggregateView(1), AggregateView(2), AggregateView(3))


def test_a_message_is_what_its_client_trained(folder: Path) -> None:
    """The declared training, replayed on the truth, gives it, whoever it is and in whatever round."""
    for target in targets(job(folder, 'truth = "b-truth"\nrounds = "all"')):
        assert target.claim is not None
        found = replay(target.claim)
        assert found is not None
        assert found.explained
        assert message_doubts(target) == []


def test_an_aggregate_is_replayed_as_the_server_weighs_it(folder: Path) -> None:
    (target, _) = targets(job(folder, 'truth = "b-truth"', 'view = "aggregate"'))
    assert target.claim is not None
    found = replay(target.claim)
    assert found is not None
    assert found.explained
    even = replace(target.claim, clients=tuple(replace(client, weight=1) for client in target.claim.clients))
    other = replay(even)
    assert other is not None
    assert not other.explained


def kept_back(before: State, after: State) -> State:
    """What a client sends that trains all layers, and leaves the first out of the message."""
    return {name: before[name] if name.startswith("body.0.") else tensor for name, tensor in after.items()}


def test_tensors_that_stay_as_they_came_are_taken_as_not_trained(tmp_path: Path) -> None:
    """In one step it makes no difference whether they were, and what the others tell is told of these examples."""
    Real(sizes=(2,), rounds=1, leaves=kept_back).record(tmp_path / "b")
    (target,) = targets(job(tmp_path, 'truth = "b-truth"'))
    assert target.claim is not None
    assert not any(name.startswith("body.0.") for name in target.observation.before)
    found = replay(target.claim)
    assert found is not None
    assert found.explained
    (client,) = target.claim.clients
    other = replay(replace(target.claim, clients=(client.with_examples(client.images.flip(-1), client.labels),)))
    assert other is not None
    assert not other.explained


def test_behind_a_defence_what_stays_may_have_been_cut_out(tmp_path: Path) -> None:
    Real(sizes=(2,), rounds=1, leaves=kept_back).record(tmp_path / "b")
    (target,) = targets(job(tmp_path, 'truth = "b-truth"\ndefended = { name = "clip", norm = 100.0 }'))
    assert target.claim is not None
    assert any(name.startswith("body.0.") for name in target.observation.before)
    found = replay(target.claim)
    assert found is not None
    assert (found.explained, found.residual) == (False, pytest.approx(1.0))


def test_clients_without_a_truth_are_attacked_and_not_scored(folder: Path) -> None:
    keys = 'truth = "b-truth/client-00000"\nrounds = [1]'
    scored, other = sources(job(folder, keys))
    assert (scored.views, other.views) == ((ServerView(0, 1),), (ServerView(1, 1),))
    assert other.truths is None


def test_the_recorded_order_of_batches_is_replayed(tmp_path: Path) -> None:
    """Batches of two out of four in an order of its own: exactly what was done, or not explained at all."""
    model, (images, labels) = Real().model(), examples(7, 4)
    order = [[3, 0], [2, 1], [1, 3], [0, 2]]
    start = {name: t.detach().clone() for name, t in model.state_dict().items()}
    optimiser = torch.optim.SGD(model.parameters(), lr=0.3)
    for rows in order:
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(model((images[rows] - 0.5) / 0.3), labels[rows]).backward()
        optimiser.step()
    writer = BundleWriter(tmp_path / "b", facts=TERMS)
    writer.round(1).sent(start)
    writer.round(1).received("a", dict(model.state_dict()), examples=4)
    writer.training("a", 1, {"optimiser": "SGD", "lr": 0.3, "steps": 4, "batch_sizes": [2] * 4}, source="read")
    writer.truth("a", images, labels, batches={1: order})
    (target,) = targets(job(tmp_path, 'truth = "b-truth"'))
    assert target.claim is not None
    found = replay(target.claim)
    assert found is not None
    assert found.residual < 1e-4
    wrong = replace(target.claim, clients=(replace(target.claim.clients[0], order=tuple(map(tuple, order[::-1]))),))
    other = replay(wrong)
    assert other is not None
    assert other.residual > 1e-2


def test_the_plan_s_word_counts_more_than_the_bundle_s(folder: Path) -> None:
    (source,) = sources(job(folder, 'training = { lr = 0.5, epochs = 2 }\ndefended = { name = "clip", norm = 1.0 }'))
    past = source.transcript.rounds[1]
    assert {person.training for person in past.participants} == {Training(lr=0.5, epochs=2)}
    assert source.transcript.terms.defences is not None
    assert "Clip" in source.transcript.terms.defences["client 0"][0]


def test_doubts_reach_the_verdict(folder: Path) -> None:
    writer = BundleWriter(folder / "b", resume=True)
    writer.training("client 0", 1, {"lr": 0.7}, source="declared")
    found = {
        view.client: details(target, DoubtKind.NOT_AS_DECLARED) for view, target in _pairs(job(folder, "rounds = [1]"))
    }
    assert found[0] == {"found": "sources disagree on lr: 0.1 (read), 0.7 (declared)"}
    assert found[1] == {}


def _pairs(job: Job) -> list[tuple[Any, Target]]:
    views = [view for source in sources(job) for view in source.views]
    return list(zip(views, targets(job), strict=True))


def test_an_aggregate_alone_is_attacked_as_one(tmp_path: Path) -> None:
    Real(sizes=(1, 2)).record(tmp_path / "b", sees="aggregate")
    (source,) = sources(job(tmp_path))
    assert source.views == (AggregateView(1), AggregateView(2))
    assert source.rehearse()
    assert select_messages(read_bundle(tmp_path / "b"), None).view == "aggregate"


def test_an_aggregate_of_nobody_knows_whom(tmp_path: Path) -> None:
    """Global models alone: two in a row are a message, whose size nobody knows."""
    writer = BundleWriter(tmp_path / "b", facts=TERMS)
    state: State = dict(Real().model().state_dict())
    writer.round(1).sent(state)
    writer.round(2).sent({name: tensor + 0.1 for name, tensor in state.items()})
    with pytest.raises(UsageError, match=r"number of examples behind the message.*give recording\.examples"):
        job(tmp_path)
    (source,) = sources(job(tmp_path, "examples = 6"))
    assert source.views == (AggregateView(1),)
    (seen,) = source.rehearse()
    assert seen.observation.knows.examples == 6


def test_numbers_that_nobody_told_are_not_known_to_the_adversary(tmp_path: Path) -> None:
    writer = BundleWriter(tmp_path / "b", facts=TERMS)
    state: State = dict(Real().model().state_dict())
    writer.round(0).sent(state)
    writer.round(0).received("a", {name: tensor + 0.1 for name, tensor in state.items()}, examples="unknown")
    with pytest.raises(UsageError, match=r"number of examples behind the message.*give recording\.examples"):
        job(tmp_path)
    (source,) = sources(job(tmp_path, "examples = 3"))
    assert source.infos()[0].text.endswith("the update of a in round 0")
    (seen,) = source.rehearse()
    assert seen.observation.knows.examples == 3


FOREIGN = {"model": "some_package.models:make"}


def test_absurd_numbers_of_a_bundle_are_refused_before_anything_is_allocated(tmp_path: Path) -> None:
    state = dict(Real().model().state_dict())
    writer = BundleWriter(tmp_path / "b", facts=TERMS)
    writer.round(1).sent(state)
    writer.round(1).received("a", {name: tensor + 1 for name, tensor in state.items()}, examples=10**9)
    assert "comes from 1,000,000,000 images" in draft(tmp_path / "b").problem
    with pytest.raises(UsageError, match="comes from 1,000,000,000 images"):
        job(tmp_path)
    for facts in ({"shape": [1, 10**6, 10**6]}, {"shape": [16, 4000, 4000], "classes": 100_000}):
        writer.facts(facts)
        with pytest.raises(UsageError, match=r"expected at most|must have at most"):
            job(tmp_path)


@pytest.mark.parametrize("facts", [{"epochs": 10**9, "batch_size": 1}, {"steps": 10**9, "batch_size": 1}])
def test_a_training_of_absurdly_many_steps_is_unknown(facts: dict[str, Any], tmp_path: Path) -> None:
    writer = Real(sizes=(2,), rounds=1).record(tmp_path / "b")
    writer.training("client 0", 1, {"batch_sizes": [1], **facts, "batch_norm": "none"})
    writer.round(1).replace_client_facts("client 0", {"lr": {"read": 0.1}, "optimiser": {"read": "SGD"}})
    (target,) = targets(job(tmp_path))
    assert target.observation.knows.training is None


def test_code_that_a_bundle_names_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "some_package").mkdir()
    (tmp_path / "some_package" / "models.py").write_text("raise SystemExit('it was run')")
    monkeypatch.syspath_prepend(str(tmp_path))
    Real().record(tmp_path / "b", **FOREIGN)
    with pytest.raises(UsageError, match="is code that is not part of fedglass: if you trust it"):
        job(tmp_path)
    with pytest.raises(UsageError, match="it was run"):
        job(tmp_path, 'model = "some_package.models:make"')


def test_defences_that_a_bundle_names_are_words_unless_they_are_built_in(tmp_path: Path) -> None:
    Real().record(tmp_path / "b", defences=[{"name": "some_package:Defence", "options": {"strength": 3}}])
    (source,) = sources(job(tmp_path))
    assert source.defences == {}
    assert source.transcript.terms.defences is not None
    assert "some_package:Defence(strength=3)" in source.transcript.terms.defences["client 0"][0]
    Real().record(tmp_path / "c", defences=[{"name": "clip", "options": {"norm": 100.0}}])
    (source,) = sources(compile_plan(parse_plan(f'[recording]\nbundle = "c"\n{ATTACK}'), tmp_path))
    assert set(source.defences) == {"client 0", "client 1"}


@pytest.mark.parametrize(
    ("facts", "keys", "match"),
    [
        ({"shape": None}, "", r"does not have its shape.*fedglass init --from"),
        ({"whitening": None}, "", "does not have its whitening"),
        ({"model": None}, "", r"does not name its model.*--model"),
        ({}, 'model = "resnet18"', "was not recorded from this model"),
        ({}, f"classes = {CLASSES + 1}", "was not recorded from this model"),
        ({}, "rounds = [9]", "expected rounds of"),
        ({}, 'whose = ["nobody"]', "names 'nobody', expected clients"),
        ({}, 'truth = "nowhere"', "is not a folder, expected one of truths"),
        ({}, 'bundel = "b"', "did you mean 'bundle'"),
    ],
)
def test_what_does_not_fit_is_refused_in_a_sentence(
    tmp_path: Path, facts: dict[str, Any], keys: str, match: str
) -> None:
    Real().record(tmp_path / "b", **facts)
    with pytest.raises((UsageError, DataError, UpdateError), match=match) as refused:
        job(tmp_path, keys)
    assert "\n" not in str(refused.value)


def test_a_fact_that_is_missing_is_taken_from_the_plan(tmp_path: Path) -> None:
    Real().record(tmp_path / "b", whitening=None, shape=None)
    keys = f"shape = {list(SHAPE)}\nwhitening = {{ mean = [0.5], std = [0.3] }}"
    assert job(tmp_path, keys).cases
    assert preferred(read_bundle(tmp_path / "b").facts, "shape") is None


@pytest.mark.parametrize(("steps", "told"), [(1, True), (None, False)])
def test_labels_are_counted_where_the_facts_allow_it(steps: int | None, told: bool, tmp_path: Path) -> None:
    """Signs mislead where activations have both: the leak of such a network was then not found."""
    model = build("lenet_tanh", shape=(3, 16, 16), classes=10)
    facts = {**TERMS, "model": "lenet_tanh", "shape": (3, 16, 16), "classes": 10}
    writer, state = BundleWriter(tmp_path / "b", facts=facts), dict(model.state_dict())
    writer.round(1).sent(state)
    writer.round(1).received("a", {name: tensor + 0.01 for name, tensor in state.items()}, examples=4)
    if steps is not None:
        read = {"optimiser": "SGD", "lr": 0.1, "steps": steps, "batch_sizes": [4] * steps}
        writer.training("a", 1, read, source="read")
    text = draft(tmp_path / "b").text
    assert parse_plan(text)
    assert ('name = "inverting_gradients"\nlabels = "last_layer"' in text) == told


def test_keys_of_a_simulation_are_refused_beside_a_bundle(folder: Path) -> None:
    for key, instead in (("client = [0]", "recording.whose"), ("round = [1]", "recording.rounds")):
        with pytest.raises(UsageError, match=f"a bundle has names and numbers of its own: give {instead}"):
            job(folder, adversary=key)


def test_a_message_that_nobody_could_take_down_is_not_passed_over(tmp_path: Path) -> None:
    writer = Real(sizes=(1, 2), rounds=1).record(tmp_path / "b")
    writer.round(1).not_recorded("client 2", "its reply is no model")
    for keys in ("", 'rounds = "all"', "rounds = [1]"):
        (source,) = sources(job(tmp_path, keys))
        assert source.unaudited_clients == ("client 2",), keys


def test_what_the_recorder_could_not_follow_is_said_with_the_replay(tmp_path: Path) -> None:
    writer = Real(sizes=(1,), rounds=1, lr=0.1).record(tmp_path / "b")
    writer.training("client 0", 1, {"x-reservations": ["There was dropout."]}, source="read")
    (target,) = targets(job(tmp_path, 'truth = "b-truth"'))
    assert message_doubts(target) == []  # the message is as told
    (other,) = targets(job(tmp_path, 'truth = "b-truth"\ntraining = { lr = 0.3, epochs = 2 }'))
    (found,) = message_doubts(other)
    assert str(found.details["found"]).endswith("There was dropout.")


def test_rounds_before_the_recording_began_are_not_forgotten(tmp_path: Path) -> None:
    in_turn(tmp_path, {5: ("a",)})
    assert [target.further for target in targets(job(tmp_path))] == [1]


def test_aggregates_that_share_a_client_tell_of_the_same_data(tmp_path: Path) -> None:
    """Those of a and b, of b and c and of a and c, added and subtracted, are a's own."""
    in_turn(tmp_path, {1: ("a", "b"), 2: ("b", "c"), 3: ("a", "c"), 4: ("d",)})
    writer = BundleWriter(tmp_path / "b", resume=True)
    state: State = dict(Real().model().state_dict())
    writer.round(4).aggregated(state)
    found = targets(job(tmp_path, 'rounds = "all"', 'view = "aggregate"'))
    assert [target.further for target in found] == [2, 2, 2, 0]


class Tied(torch.nn.Module):
    """A network that has a tensor under two names."""

    def __init__(self, shape: tuple[int, int, int] = SHAPE, classes: int = CLASSES) -> None:
        super().__init__()
        self.body = build("lenet", shape=shape, classes=classes)
        self.again = torch.nn.Module()
        self.again.weight = self.body.body[0].weight

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.body(inputs)
        return out


def test_the_second_name_of_a_tensor_is_read_or_told(tmp_path: Path) -> None:
    """A defence that goes through the parameters leaves the second name as it was."""
    once = [name for name, _ in Tied().named_parameters()]

    def noisy(before: State, after: State) -> State:
        return {name: tensor + torch.randn(tensor.shape) if name in once else tensor for name, tensor in after.items()}

    keys = f'truth = "b-truth"\nmodel = "{__name__}:Tied"'
    Real(sizes=(1,), rounds=1, model=Tied).record(tmp_path / "b", model=None)
    assert unread(targets(job(tmp_path, keys))[0]) == ()
    Real(sizes=(1,), rounds=1, model=Tied, leaves=noisy).record(tmp_path / "c", model=None)
    text = f'[recording]\nbundle = "c"\nmodel = "{__name__}:Tied"\n'
    for more in ("", '[adversary]\nview = "aggregate"\n'):
        (target,) = targets(compile_plan(parse_plan(f"{text}{more}{ATTACK}"), tmp_path))
        assert unread(target) == ("again.weight",)
    whole = dict(Tied().state_dict())
    second = {name: tensor + 0.1 for name, tensor in whole.items() if name != "body.body.0.weight"}
    writer = BundleWriter(tmp_path / "e", facts={**TERMS, "model": None})
    writer.round(1).sent(whole)
    writer.round(1).received("a", second, examples=1)
    told = {"optimiser": "SGD", "lr": 0.1, "steps": 1, "batch_sizes": [1]}
    writer.training("a", 1, told, source="read")
    (target,) = targets(compile_plan(parse_plan(text.replace('"c"', '"e"') + ATTACK), tmp_path))
    assert unread(target) == ("again.weight",), "the first name did not travel"


@pytest.mark.parametrize(
    ("metrics", "told"),
    [
        ({"loss": 0.5, "accuracy of each class": [0.1] * CLASSES}, ()),
        ({"embedding": [0.5] * 144}, ("metric embedding",)),
        ({"layers": {"first": [[0.5] * 12] * 6}}, ("metric layers",)),
        ({"control": b"0123"}, ("metric control",)),
        ({"control": np.zeros((40, 50))}, ("metric control",)),
        ({"control": torch.zeros(40, 50)}, ("metric control",)),
        ({"accuracy": np.zeros(CLASSES), "steps": np.int64(3)}, ()),
        ({"log": "x" * 500}, ("metric log",)),
    ],
)
def test_metrics_that_may_hold_a_picture_are_told(
    metrics: dict[str, Any], told: tuple[str, ...], tmp_path: Path
) -> None:
    writer = Real(sizes=(1,), rounds=1).record(tmp_path / "b")
    writer.training("client 0", 1, {"metrics": metrics}, source="read")
    (target,) = targets(job(tmp_path, 'truth = "b-truth"'))
    assert unread(target) == told


def test_further_arrays_may_be_told_in_any_form(tmp_path: Path) -> None:
    writer = Real(sizes=(1,), rounds=1).record(tmp_path / "b")
    writer.training("client 0", 1, {"x-further-arrays": "a control variate"}, source="read")
    assert unread(targets(job(tmp_path))[0]) == ("a control variate",)


def test_class_names_that_are_not_one_for_each_class_are_not_used(tmp_path: Path) -> None:
    Real(sizes=(1,), rounds=1).record(tmp_path / "b", class_names=["cat"])
    (source,) = sources(job(tmp_path, 'truth = "b-truth"'))
    assert source.transcript.terms.class_names is None


def test_an_audit_of_a_bundle_that_has_grown_is_another(tmp_path: Path) -> None:
    """Rounds that came later, doubts and another order of batches change the verdict on the same message."""
    Real(sizes=(1,), rounds=1).record(tmp_path / "b")
    keys = 'truth = "b-truth"\nrounds = [1]'
    seen = [sources(job(tmp_path, keys))[0].identity()]
    writer = BundleWriter(tmp_path / "b", resume=True)
    writer.round(3).received("client 0", dict(Real().model().state_dict()))
    seen.append(sources(job(tmp_path, keys))[0].identity())
    writer.training("client 0", 1, {"lr": 0.7}, source="declared")
    seen.append(sources(job(tmp_path, keys))[0].identity())
    images, labels = examples(0, 1)
    writer.truth("client 0", images, labels, batches={1: [[0]]})
    seen.append(sources(job(tmp_path, keys))[0].identity())
    assert len(set(seen)) == 4


def test_noise_that_another_message_has_is_told(tmp_path: Path) -> None:
    """A client that begins every round with the same seed, and two clients that have one."""

    def noisy(before: State, after: State) -> State:
        torch.manual_seed(0)
        return {name: tensor + torch.randn(tensor.shape) for name, tensor in after.items()}

    told = 'truth = "b-truth"\nrounds = "all"\ndefended = { name = "gaussian_noise", std = 1.0 }'
    Real(sizes=(1, 2), rounds=2, leaves=noisy).record(tmp_path / "b", defences=None)
    first, *_ = targets(job(tmp_path, told))
    others = ["as of client 1 in round 1", "as of client 0 in round 2", "as of client 1 in round 2"]
    assert list(first.same_noise_in) == others
    assert DoubtKind.NOISE_REFUTED in [each.kind for each in message_doubts(first)]
    first, _ = targets(job(tmp_path, told, 'view = "aggregate"'))
    assert list(first.same_noise_in) == ["as in round 2"]
    first, _ = targets(job(tmp_path, f'{told}\nwhose = ["client 1"]'))
    assert "as of client 0 in round 1" in first.same_noise_in, "the server has it, whoever asks"


def test_what_a_recorder_lost_is_not_passed_over(tmp_path: Path) -> None:
    """Its bundle is whole by itself, and nobody sees what it lacks."""
    writer = Real(sizes=(1,), rounds=1).record(tmp_path / "b")
    assert sources(job(tmp_path))[0].unaudited_clients == ()
    writer.mark_incomplete()
    for keys in ("", "rounds = [1]", 'whose = ["client 0"]'):
        assert sources(job(tmp_path, keys))[0].unaudited_clients == ("an unidentified client (recording incomplete)",)


def test_a_declared_training_that_moves_nothing_is_not_called_a_zero_update(tmp_path: Path) -> None:
    """Without its noise nothing would have been sent: the attack reads nothing there, and does not fail."""

    def noisy(before: State, after: State) -> State:
        generator = torch.Generator().manual_seed(0)
        return {name: tensor + torch.randn(tensor.shape, generator=generator) for name, tensor in after.items()}

    Real(sizes=(1,), rounds=1, leaves=noisy).record(tmp_path / "b")
    told = 'truth = "b-truth"\ntraining = { lr = 1e-12 }\ndefended = { name = "gaussian_noise", std = 1.0 }'
    result = run(job(tmp_path, told), tmp_path / "out")
    assert {record.status for record in result.records} == {"done"}
    assert result.verdict.state == "inconclusive"


def test_clients_that_have_the_same_picture_tell_of_the_same_data(tmp_path: Path) -> None:
    """One that comes back under another name, or has the picture from the same source."""
    in_turn(tmp_path, {1: ("a", "b"), 2: ("c",)})
    writer, images, labels = BundleWriter(tmp_path / "b", resume=True), *examples(0, 1)
    for name in ("a", "c"):
        writer.truth(name, images, labels)
    writer.truth("b", *examples(1, 1))
    found = targets(job(tmp_path, 'truth = "b-truth"\nrounds = "all"'))
    assert [(*target.contributors, target.further) for target in found] == [("a", 1), ("b", 0), ("c", 1)]


@pytest.mark.parametrize("first", [0, 1])
def test_rounds_and_clients_keep_the_numbers_and_names_of_the_federation(first: int, tmp_path: Path) -> None:
    """NVFlare counts from 0 and Flower from 1; the seeds of cases do not depend on it."""
    Real(sizes=(1, 2), rounds=2, first=first).record(tmp_path / "b")
    made = job(tmp_path, 'truth = "b-truth"')
    (source,) = sources(made)
    assert list(source.transcript.rounds) == [first, first + 1]
    assert [info.round for info in source.infos()] == [first, first, first + 1, first + 1]
    assert source.infos()[1].text == f"b: the server sees the update of client 1 in round {first}"
    assert source.infos()[1].name == "b: server, client 1"
    assert [info.spec for info in source.infos()][:3] == [
        "ServerView(client=0, round=0)",
        "ServerView(client=1, round=0)",
        "ServerView(client=0, round=1)",
    ]
    together = job(tmp_path, 'truth = "b-truth"', "together = true").sources[0].infos()[0]
    assert together.spec.startswith("Together(views=(ServerView(client=0, round=0), ServerView(client=0, round=1)")
    assert f"rounds {first}, {first + 1} together" in together.text
